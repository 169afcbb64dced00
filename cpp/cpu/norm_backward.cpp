// The backward of layer_norm and rms_norm. With g = grad·(weight + weight_offset) and h = (x - mean)·rstd - shift·rstd, for
// rms x·rstd:
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)),   rms: grad_input = rstd·(g - h·mean(g·h))
//   grad_weight = sum over rows of grad·h,   grad_bias = of grad
//
// g is a rounded product in both passes: a fused one would differ from its own mean in rows of one.
#include "cpu/engine/row_columns.h"
#include "kernels/norm.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class Element, bool Layer>
struct Backward {
  using T = Element;
  using A = accumulate_t<T>;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size;
  enum { kRstd, kMeanGh, kMean, kShift, kOutputShift, kMeanG, kNumbers };  // kOutputShift: shift·rstd
  enum { kX, kGrad };
  static constexpr int kInputs = 2, kSums = Layer ? 2 : 1, kColumnSums = kSums, kState = Layer ? kNumbers : kMean;

  const NormBackward& a;

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  int64_t chunks() const { return a.chunks; }
  StridedRows input(int k) const {
    return k == kX ? StridedRows{a.input, a.input_stride} : StridedRows{a.grad, a.grad_stride};
  }
  StridedRows addend() const { return {a.grad_sum, a.grad_sum_stride}; }
  void* output() const { return a.grad_input; }
  void* partial() const { return a.partial; }
  Column<T> column() const { return {a.weight, a.parameter, 1, static_cast<A>(a.weight_offset)}; }

  void read(int64_t row, int64_t rows, A (*state)[W]) const {
    const NormStatistics& from = a.statistics;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (row + r) * from.step;
      const A rstd = state[kRstd][r] = static_cast<const A*>(from.rstd)[at];
      if constexpr (Layer) {
        state[kMean][r] = static_cast<const A*>(from.mean)[at];
        const A shift = state[kShift][r] = from.shift ? static_cast<const A*>(from.shift)[at] : A(0);
        state[kOutputShift][r] = shift * rstd;
      }
    }
  }

  // Sums of g·(x - mean), for rms of g·x, and of g.
  template <class Part>
  FASTOPS_INLINE void terms(Part part, const U* x, U weight, const U* state, U* sums) const {
    const U g = product(x[kGrad], weight);
    if constexpr (Layer) {
      sums[0] = g * keep<T>(x[kX] - state[kMean], part);
      sums[1] = g;
    } else {
      sums[0] = g * x[kX];
    }
  }
  FASTOPS_INLINE void finish(int64_t rows, const A (*sums)[W], A (*state)[W]) const {
    const A n = static_cast<A>(a.n);
    for (int64_t r = 0; r < rows; ++r) {
      A gd = sums[0][r];
      if constexpr (Layer) gd = gd - product(sums[1][r], state[kShift][r]);
      state[kMeanGh][r] = gd * state[kRstd][r] / n;
      if constexpr (Layer) state[kMeanG][r] = sums[1][r] / n;
    }
  }

  FASTOPS_INLINE void prepare(U* x, const U* state) const {
    if constexpr (Layer)
      x[kX] = (x[kX] - state[kMean]) * state[kRstd] - state[kOutputShift];
    else
      x[kX] = x[kX] * state[kRstd];
  }
  FASTOPS_INLINE void add_columns(const U* x, U* sums) const {
    sums[0] = sums[0] + x[kGrad] * x[kX];
    if constexpr (Layer) sums[1] = sums[1] + x[kGrad];
  }
  FASTOPS_INLINE U write(const U* x, U weight, const U* state) const {
    U v = product(x[kGrad], weight);
    if constexpr (Layer) v = v - state[kMeanG];
    return product(v - product(x[kX], state[kMeanGh]), state[kRstd]);
  }
};

template <class F>
void run(const NormBackward& a, F f) {
  auto with = [&]<class Op>(tag<Op>) {
    const Op op{a};
    f(RowColumnsEngine<Op>(op));
  };
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? with(tag<Backward<T, true>>{}) : with(tag<Backward<T, false>>{});
  });
}

}  // namespace

void norm_backward(const NormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  run(a, [&](const auto& engine) { engine.chunks(chunk_begin, chunk_end); });
}
void norm_backward_segments(const NormBackward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  run(a, [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}

}  // namespace fastops::FASTOPS_ISA
