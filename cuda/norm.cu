// The forward of layer_norm and rms_norm, with and without a residual. Formulas: kernels/norm.h.
#include "kernels/norm.h"

#include <cfloat>
#include <cmath>

#include "device/math.cuh"
#include "dispatch.cuh"
#include "engine/row/launch.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// 1 / sqrt(variance + eps). The approximation's 2 units in the last place are far below what a half type shows.
template <class T, class A>
__device__ inline A inverse_sqrt(A variance, A eps) {
  if constexpr (sizeof(T) == 2)
    return rsqrtf(variance + eps);
  else
    return A(1) / sqrt(variance + eps);
}

template <class T>
__device__ inline T rounded_sum(T a, T b) {
  return device::narrow<T>(device::widen(a) + device::widen(b));
}
template <class T, int W>
__device__ inline Vector<T, W> rounded_sum(const Vector<T, W>& a, const Vector<T, W>& b) {
  Vector<T, W> sum;
  if constexpr (sizeof(T) == 2 && W % 2 == 0) {
#pragma unroll
    for (int k = 0; k < W / 2; ++k) sum.pair[k] = device::add_pairs<T>(a.pair[k], b.pair[k]);
  } else {
#pragma unroll
    for (int k = 0; k < W; ++k) sum.at[k] = rounded_sum(a.at[k], b.at[k]);
  }
  return sum;
}

template <int W, class A>
__device__ inline A square_sum(const A (&x)[W]) {
  A sum = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) sum += x[k] * x[k];
  return sum;
}

// The center of a second pass: `element`, of the row, if it is this near the mean, else the mean. Any number near the mean
// will do. With an element, the squares of a constant row are 0.
template <class A>
__device__ inline A near_mean(A mean, A element) {
  constexpr A kNear = sizeof(A) == 4 ? A(1e-6) : A(1e-15);
  return fabs(element - mean) <= kNear * fabs(mean) ? element : mean;
}

// Threads per multiprocessor that the registers leave room for.
template <class Form, class T, int W>
constexpr int resident_threads_of_norm(bool layer) {
  if (sizeof(T) == 8) return 512;
  if (Form::kParts == plan::row::Parts::cluster) return 768;
  if (Form::kVectors * W * sizeof(T) > 32 || (W == 2 && Form::kVectors > 4)) return Form::kThreads == 384 ? 1152 : 1024;
  return layer ? 1280 : 1536;
}

// The members that the policies of both norms have: operands, and how a row is addressed.
template <class T, int W, bool kLayer>
struct NormOp {
  using In = T;
  using Out = T;
  using Accumulate = accumulate_t<T>;
  using A = Accumulate;
  static constexpr bool kPeak = false, kPowers = false, kResidual = true;
  static constexpr int kInputs = 1, kWidth = W;
  template <class Form>
  static constexpr int kResidentThreads = resident_threads_of_norm<Form, T, W>(kLayer);
  struct Row {
    static constexpr bool skip = false;
    const T* input[1];
    const T* residual;
    T *sum, *output;
  };

  int64_t n;
  const T *input, *residual;
  int64_t input_stride, residual_stride;
  T *sum, *output;
  NormStatistics statistics;
  const void *weight, *bias;
  bool columns_are_f32;
  A inverse_n, eps, offset;

  explicit NormOp(const NormForward& a)
      : n(a.n),
        input(static_cast<const T*>(a.input)),
        residual(static_cast<const T*>(a.residual)),
        input_stride(a.input_stride),
        residual_stride(a.residual_stride),
        sum(static_cast<T*>(a.sum)),
        output(static_cast<T*>(a.output)),
        statistics(a.statistics),
        weight(a.weight),
        bias(a.bias),
        columns_are_f32(sizeof(T) == 2 && a.parameter == DType::f32),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        eps(static_cast<A>(a.eps)),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)) {}

  __device__ Row row(int64_t r) const {
    return {
        {input + r * input_stride}, residual ? residual + r * residual_stride : nullptr, sum + r * n, output + r * n};
  }
  __device__ A padding() const { return 0; }
  __device__ Vector<T, kWidth> combine(const Vector<T, kWidth>& input, const Vector<T, kWidth>& residual) const {
    return rounded_sum(input, residual);
  }
  template <class P>
  __device__ Column<P> column(int k) const {
    // No bias is -0.0, because y + -0.0 is y for every y.
    return {static_cast<const P*>(k == 0 ? weight : bias), k == 0 ? A(1) : A(-0.0)};
  }
};

template <class T, int W>
struct RmsForward : NormOp<T, W, false> {
  using Base = NormOp<T, W, false>;
  using Base::kWidth;
  using typename Base::A;
  using typename Base::Row;
  static constexpr plan::row::Ops kOp = plan::row::kRmsNorm;
  static constexpr bool kCenter = false;
  static constexpr int kColumns = 1;
  struct Sum {
    A squares;
  };
  using State = A;
  using Base::Base;

  __device__ Sum zero() const { return {0}; }
  __device__ Sum merge(const Sum& a, const Sum& b) const { return {a.squares + b.squares}; }
  __device__ void add(Sum& sum, const A (&x)[1][kWidth], int64_t, int) const { sum.squares += square_sum(x[0]); }
  __device__ State finish(const Row&, const Sum& sum, int64_t r, bool saves) const {
    const A rstd = inverse_sqrt<T>(sum.squares * this->inverse_n, this->eps);
    if (saves && this->statistics.rstd) static_cast<A*>(this->statistics.rstd)[r] = rstd;
    return rstd;
  }
  __device__ void write(const A (&x)[1][kWidth], const Row&, A rstd, int64_t, const A (&weight)[1][kWidth],
                        A (&y)[kWidth]) const {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) y[k] = x[0][k] * rstd * (weight[0][k] + this->offset);
  }
};

// Sums of distances from a center, times a power of two about 1 / n, so that none overflows, and of their squares. The
// first pass has the center 0. The variance loses as many digits as the mean's square is larger than it. If too many are
// lost, or the squares overflow, a second pass takes distances from the mean.
template <class T, int W>
struct LayerForward : NormOp<T, W, true> {
  using Base = NormOp<T, W, true>;
  using Base::kWidth;
  using typename Base::A;
  using typename Base::Row;
  static constexpr plan::row::Ops kOp = plan::row::kLayerNorm;
  static constexpr bool kCenter = true;
  static constexpr int kColumns = 2;
  // mean² / variance, at most, for the moments of one pass. The results of halves have room for a mean of four standard
  // deviations, f32 and f64 for a fourth of one.
  static constexpr A kNearZero = sizeof(T) == 2 ? A(16) : A(1) / 16;
  struct alignas(2 * sizeof(A)) Sum {
    A distances, squares;
  };
  // The mean is `mean` + `shift`: a number near it, and what is left.
  struct Moments {
    A mean, shift, squares;
  };
  struct State {
    A mean, rstd, shift;  // shift: of the output
  };

  A count, scale, unscale;

  explicit LayerForward(const NormForward& a)
      : Base(a),
        count(static_cast<A>(a.n)),
        scale(static_cast<A>(std::exp2(-std::ceil(std::log2(static_cast<double>(a.n)))))),
        unscale(1 / scale) {}

  __device__ Sum zero() const { return {0, 0}; }
  __device__ Sum merge(const Sum& a, const Sum& b) const { return {a.distances + b.distances, a.squares + b.squares}; }
  __device__ A first_center() const { return 0; }
  __device__ void add(Sum& sum, const A (&x)[1][kWidth], int64_t, int) const {
    sum.distances += device::tree_sum(x[0]) * scale;
    sum.squares += square_sum(x[0]);
  }
  __device__ void add_about(A center, Sum& sum, const A (&x)[1][kWidth], int64_t column, int left) const {
    A d[1][kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) d[0][k] = x[0][k] - center;
    if (kWidth == 2 && left == 1) d[0][kWidth - 1] = 0;
    add(sum, d, column, left);
  }
  // Products are rounded, lest they be fused into other sums in other kernels.
  __device__ Moments moments(const Sum& sum, A center) const {
    const A each = this->inverse_n * unscale, mean = device::product(sum.distances, each);
    const A shift = device::product(fma(-mean, count * scale, sum.distances), each), distance = mean + shift;
    const A squares = fma(-device::product(count, distance), distance, sum.squares);
    if (center == 0) return {mean, shift, squares};
    return {center, distance, squares < 0 ? 0 : squares};
  }
  __device__ bool again(const Sum& sum) const {
    constexpr A kLeast = sizeof(A) == 4 ? A(FLT_MIN) : A(DBL_MIN), kMost = sizeof(A) == 4 ? A(FLT_MAX) : A(DBL_MAX);
    const Moments of = moments(sum, 0);
    return !(of.squares >= kLeast && of.squares <= kMost && of.squares * kNearZero >= count * (of.mean * of.mean));
  }
  __device__ A center(const Row& row, const Sum& sum) const {
    const T first = row.residual ? rounded_sum(*row.input[0], *row.residual) : *row.input[0];
    return near_mean(moments(sum, 0).mean, A(device::widen(first)));
  }
  __device__ State finish(const Row&, const Sum& sum, int64_t r, bool saves, A center) const {
    const Moments of = moments(sum, center);
    const A rstd = inverse_sqrt<T>(of.squares * this->inverse_n, this->eps);
    const NormStatistics& to = this->statistics;
    if (saves && to.rstd) {
      const int64_t at = r * to.step;
      static_cast<A*>(to.mean)[at] = to.shift ? of.mean : of.mean + of.shift;
      if (to.shift) static_cast<A*>(to.shift)[at] = of.shift;
      static_cast<A*>(to.rstd)[at] = rstd;
    }
    return {of.mean, rstd, -of.shift * rstd};
  }
  __device__ void write(const A (&x)[1][kWidth], const Row&, const State& of, int64_t, const A (&columns)[2][kWidth],
                        A (&y)[kWidth]) const {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) y[k] = ((x[0][k] - of.mean) * of.rstd + of.shift) * columns[0][k] + columns[1][k];
  }
};

template <template <class, int> class Op>
int launch(const NormForward& a, void* stream) {
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    constexpr plan::row::Ops kOp = Op<T, 1>::kOp;
    return launch_rows<kOp, T, T>({kOp, a.dtype, a.dtype, a.n}, a.rows, static_cast<cudaStream_t>(stream),
                                  [&](auto width) { return Op<T, decltype(width)::value>(a); });
  });
}

}  // namespace

int norm_forward(const NormForward& a, void* stream) {
  return a.norm == Norm::rms ? launch<RmsForward>(a, stream) : launch<LayerForward>(a, stream);
}

}  // namespace fastops::FASTOPS_ARCH
