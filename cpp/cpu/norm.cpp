// The forward of layer_norm and rms_norm, with and without a residual. Formulas: kernels/norm.h.
#include "kernels/norm.h"

#include "cpu/engine/rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// The members that the policies of both norms have.
template <class Element>
struct NormOp {
  using T = Element;
  using R = Element;
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;
  static constexpr bool kWidens = sizeof(T) != sizeof(A);
  static constexpr int kInputs = 1;
  static constexpr bool kWrites = true, kSaves = true, kMoments = true, kResidual = true;

  const NormForward& a;
  const A count = static_cast<A>(a.n), each = 1 / count, eps = static_cast<A>(a.eps);

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  RowsView input(int) const { return {a.input, a.rows, a.input_stride, 0}; }
  RowsView residual() const { return {a.residual, a.rows, a.residual_stride, 0}; }
  void* sum() const { return a.sum; }
  void* output() const { return a.output; }
  static constexpr bool skips(int64_t) { return false; }
  Column<T> column(int k) const {
    if (k == 0) return {a.weight, a.parameter, 1, static_cast<A>(a.weight_offset)};
    return {a.bias, a.parameter, 0, 0};
  }
  // Call f(found, state) for the lanes of all rows at once, or for each of few rows: a vector's division takes longer. f has
  // a product(), so that the compiler does not make vectors of few rows again, which would wait for stores of their lanes.
  template <int kFound, int kState, class F>
  static FASTOPS_INLINE void finish_each(int64_t rows, const V* __restrict found, V* __restrict state, F f) {
    if (rows > 4) return f(found, state);
    for (int64_t r = 0; r < rows; ++r) {
      A sums[kFound], of[kState];
      for (int k = 0; k < kFound; ++k) sums[k] = found[k][r];
      f(sums, of);
      for (int k = 0; k < kState; ++k) state[k][r] = of[k];
    }
  }
  A rstd_of(double variance) const { return static_cast<A>(1 / root(variance + a.eps)); }
};

template <class Element>
struct RmsForward : NormOp<Element> {
  using Base = NormOp<Element>;
  using typename Base::A;
  using typename Base::T;
  using typename Base::U;
  using typename Base::V;
  static constexpr Center kCenter = Center::none;
  static constexpr int kSums = 1, kState = 1, kColumns = 1;
  // Rows are widened in both passes, which costs nothing except for AVX2's bf16.
  static constexpr bool kHolds = Base::kWidens && kAlternates<T> && FASTOPS_VECTOR_BYTES == 32;

  template <class Part>
  FASTOPS_INLINE U terms(int64_t, Part, const U* x, U, U* sums) const {
    sums[0] = x[0] * x[0];
    return x[0];
  }
  bool moments(int64_t count, const A* sums, double* found) const {
    found[0] = sums[0] * (1 / static_cast<A>(count));
    return true;
  }
  // The product is rounded so that it is not fused into the sum.
  void merge(double* total, const double* segment, int64_t count) const {
    total[0] += product(segment[0], static_cast<double>(count));
  }
  void finish(int64_t, int64_t rows, const V* found, V* state) const {
    const A each = this->each, eps = this->eps;
    this->template finish_each<1, 1>(rows, found, state, [=](const auto* sums, auto* rstd) {
      rstd[0] = 1 / root(product(sums[0], like(sums[0], each)) + like(sums[0], eps));
    });
  }
  void finish_total(const double* total, A* state) const {
    state[0] = this->rstd_of(total[0] / static_cast<double>(this->a.n));
  }
  void save(int64_t row, int64_t rows, const V*, const V* state) const {
    const NormStatistics& to = this->a.statistics;
    if (!to.rstd) return;
    for (int64_t r = 0; r < rows; ++r) static_cast<A*>(to.rstd)[(row + r) * to.step] = state[0][r];
  }
  FASTOPS_INLINE U write(int64_t, int64_t, const U* x, const U* state, const U* columns) const {
    return write_held(x[0], state, columns);
  }
  FASTOPS_INLINE U write_held(U x, const U* state, const U* columns) const { return x * state[0] * columns[0]; }
};

// Sums of d = x - center and of d², where the center is the mean of the row's first elements. If it is too far from the
// row's mean, a second pass takes distances from the mean that the first one gave. That need not be the mean to the last bit,
// because shift, the mean of d, has the rest.
template <class Element>
struct LayerForward : NormOp<Element> {
  using Base = NormOp<Element>;
  using typename Base::A;
  using typename Base::T;
  using typename Base::U;
  using typename Base::V;
  enum { kMean, kRstd, kOutputShift, kShift, kVariance, kNumbers };  // kOutputShift: shift·rstd
  static constexpr Center kCenter = Center::sample;
  static constexpr int kSums = 2, kState = kNumbers, kColumns = 2;
  static constexpr bool kHolds = Base::kWidens;
  // The center may be kNear standard deviations from the mean, because the sums' rounding grows with that distance. A half
  // type's result has digits to spare, so that one element will do.
  static constexpr int64_t kSample = Base::kWidens ? 1 : 64;
  static constexpr A kNear = Base::kWidens ? A(8) : A(0.25);

  // Whether E[d²] - shift² is a variance: no square overflowed, and shift is at most so many standard deviations.
  static FASTOPS_INLINE bool holds(A shift, A variance, A deviations) {
    return variance * (deviations * deviations) >= shift * shift && variance < static_cast<A>(__builtin_inf());
  }

  template <class Part>
  FASTOPS_INLINE U terms(int64_t, Part part, const U* x, U center, U* sums) const {
    sums[0] = keep<T>(x[0] - center, part);
    sums[1] = sums[0] * sums[0];
    return x[0];
  }

  // Moments are the center, the distance of the mean from it, and the variance.
  bool moments(int64_t count, const A* sums, double* found) const {
    const A n = static_cast<A>(count), each = 1 / n, square = sums[2] * each, shift = sums[1] / n;
    return put_moments(sums[0], shift, square - shift * shift, kNear, found);
  }
  static FASTOPS_INLINE bool put_moments(A center, A shift, A variance, A deviations, double* found) {
    found[0] = center;
    found[1] = shift;
    found[2] = variance;
    return holds(shift, variance, deviations);
  }
  A center(const double* found) const { return static_cast<A>(found[0]) + static_cast<A>(found[1]); }
  void moments_again(const T* x, int64_t count, const A* sums, double* found) const {
    const A n = static_cast<A>(count), shift = sums[1] / n, variance = sums[2] / n - shift * shift;
    if (!put_moments(sums[0], shift, variance, A(32), found)) moments_in_f64(x, count, found);
  }
  // Find the moments in f64 if they do not hold about the mean either: rows that are constant but for rounding, or huge.
  static __attribute__((noinline)) void moments_in_f64(const T* x, int64_t count, double* found) {
    const double each = 1 / static_cast<double>(count);
    auto mean_of = [&](auto f) {
      double mean = 0;
      for (int64_t i = 0; i < count; ++i) mean += f(static_cast<double>(value(x + i))) * each;
      return mean;
    };
    const double mean = mean_of([](double v) { return v; });
    const A better = static_cast<A>(mean + mean_of([&](double v) { return v - mean; }));
    const double shift = mean_of([&](double v) { return v - better; });
    found[0] = better;
    found[1] = shift;
    found[2] = mean_of([&](double v) { return (v - better - shift) * (v - better - shift); });
  }

  // A total is the first segment's center, the count, the distance of the mean from that center, and the squared distances
  // from the mean.
  void merge(double* total, const double* segment, int64_t count) const {
    if (total[1] == 0) total[0] = segment[0];
    const double n = static_cast<double>(count);
    const double distance = (segment[0] - total[0]) + segment[1] - total[2], all = total[1] + n;
    total[2] += distance * (n / all);
    total[3] += segment[2] * n + distance * distance * (total[1] * n / all);
    total[1] = all;
  }

  void finish(int64_t, int64_t rows, const V* found, V* state) const {
    const A n = this->count, each = this->each, eps = this->eps;
    this->template finish_each<3, kNumbers>(rows, found, state, [=](const auto* sums, auto* of) {
      const auto center = sums[0], shift = sums[1] / like(center, n);
      of[kVariance] = sums[2] * like(center, each) - shift * shift;
      of[kMean] = center + shift;
      of[kRstd] = 1 / root(of[kVariance] + like(center, eps));
      of[kShift] = shift - (of[kMean] - center);
      of[kOutputShift] = product(of[kShift], of[kRstd]);
    });
  }
  bool again(int64_t r, const V* found, const V* state) const {
    return !holds(state[kMean][r] - found[0][r], state[kVariance][r], kNear);
  }
  A center_again(int64_t r, const V* state) const { return state[kMean][r]; }
  void finish_again(const double* found, A* state) const {
    const A center = static_cast<A>(found[0]), shift = static_cast<A>(found[1]), mean = center + shift;
    put_state(mean, shift - (mean - center), found[2], state);
  }
  void finish_total(const double* total, A* state) const {
    const double mean = total[0] + total[2], back = mean - total[0];
    const double rest = (total[0] - (mean - back)) + (total[2] - back);  // what the sum's rounding took
    const A rounded = static_cast<A>(mean);
    put_state(rounded, static_cast<A>((mean - rounded) + rest), total[3] / static_cast<double>(this->a.n), state);
  }
  void put_state(A mean, A shift, double variance, A* state) const {
    state[kMean] = mean;
    state[kRstd] = this->rstd_of(variance);
    state[kOutputShift] = shift * state[kRstd];
    state[kShift] = shift;
    state[kVariance] = static_cast<A>(variance);
  }
  void save(int64_t row, int64_t rows, const V*, const V* state) const {
    const NormStatistics& to = this->a.statistics;
    if (!to.rstd) return;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (row + r) * to.step;
      static_cast<A*>(to.mean)[at] = to.shift ? state[kMean][r] : state[kMean][r] + state[kShift][r];
      if (to.shift) static_cast<A*>(to.shift)[at] = state[kShift][r];
      static_cast<A*>(to.rstd)[at] = state[kRstd][r];
    }
  }
  FASTOPS_INLINE U write(int64_t, int64_t, const U* x, const U* state, const U* columns) const {
    return write_held(x[0], state, columns);
  }
  FASTOPS_INLINE U write_held(U x, const U* state, const U* columns) const {
    return ((x - state[kMean]) * state[kRstd] - state[kOutputShift]) * columns[0] + columns[1];
  }
};

template <class F>
void run(const NormForward& a, F f) {
  auto with = [&]<class Op>(tag<Op>) {
    const Op op{a};
    f(RowEngine<Op>(op));
  };
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? with(tag<LayerForward<T>>{}) : with(tag<RmsForward<T>>{});
  });
}

}  // namespace

void norm_forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  run(a, [&](const auto& engine) { engine.rows(row_begin, row_end); });
}
void norm_forward_segments(const NormForward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  run(a, [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}

}  // namespace fastops::FASTOPS_ISA
