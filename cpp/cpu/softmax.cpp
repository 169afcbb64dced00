// softmax: y = e^(u - max u) / Σ e^(u - max u), u = scale·x     backward: grad_x = scale·y·(g - Σ g·y)
// log:     y = u - max u - log Σ e^(u - max u)                  backward: grad_x = scale·(g - e^y·Σ g)
//
// u - max u is |scale|·(±x - max ±x) with the scale's sign: rounding then grows with the distance from the maximum, not
// with x. A row with an infinite maximum, or a NaN, is NaN.
#include "cpu/engine/raised.h"
#include "cpu/engine/rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class Element, class Result, bool Log>
struct Forward {
  using T = Element;
  using R = Result;
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;
  static constexpr int kInputs = 1, kSums = 1, kState = 2, kColumns = 0;
  static constexpr Center kCenter = Center::peak;
  static constexpr bool kWrites = true, kHolds = !Log, kSaves = false, kMoments = false, kResidual = false;

  const Softmax& a;
  const A sign = a.scale < 0 ? A(-1) : A(1), magnitude = static_cast<A>(a.scale < 0 ? -a.scale : a.scale);

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  RowsView input(int) const { return a.input; }
  void* output() const { return a.output; }
  static constexpr bool skips(int64_t) { return false; }

  FASTOPS_INLINE U ranked(int64_t, const U* x) const { return x[0] * every<T>(sign); }
  FASTOPS_INLINE U below(U x, U center) const { return (x * every<T>(sign) - center) * every<T>(magnitude); }
  template <class Part>
  FASTOPS_INLINE U terms(int64_t, Part part, const U* x, U center, U* sums) const {
    const U raised = of_each([](V v) { return exp_raised<R>(v); }, below(x[0], center));
    sums[0] = keep<T>(raised, part);
    return raised;
  }
  FASTOPS_INLINE void merge(double* total, const double* segment) const {
    const double peak = total[0] < segment[0] ? segment[0] : total[0];
    const double center = peak == -__builtin_inf() ? 0 : peak, by = magnitude;
    total[1] =
        total[1] * __builtin_exp((total[0] - center) * by) + segment[1] * __builtin_exp((segment[0] - center) * by);
    total[0] = peak;
  }
  FASTOPS_INLINE void finish(int64_t, int64_t, const V* found, V* state) const {
    const V infinite = like(V{}, __builtin_inf()), one = like(V{}, 1);
    const V sum = select(found[0] == -infinite, infinite - infinite, found[1]);
    state[0] = found[0];
    state[1] = Log ? log(sum * kLower<A>) : one / sum;
  }
  FASTOPS_INLINE U write(int64_t, int64_t, const U* x, const U* state) const {
    const U distance = below(x[0], state[0]);
    if constexpr (Log)
      return distance - state[1];
    else
      return write_held(of_each([](V v) { return exp_raised<R>(v); }, distance), state);
  }
  FASTOPS_INLINE U write_held(U raised, const U* state) const { return raised * state[1]; }
};

template <class Element, class Result, bool Log>
struct Backward {
  using T = Element;
  using R = Result;
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;
  static constexpr int kInputs = 2, kSums = 1, kState = Log ? 2 : 1, kColumns = 0;
  static constexpr Center kCenter = Center::none;
  static constexpr bool kWrites = true, kHolds = false, kSaves = false, kMoments = false, kResidual = false;

  const SoftmaxBackward& a;
  const A scale = static_cast<A>(a.scale);

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  RowsView input(int k) const { return k == 0 ? a.grad : a.output; }
  void* output() const { return a.grad_input; }
  static constexpr bool skips(int64_t) { return false; }

  template <class Part>
  FASTOPS_INLINE U terms(int64_t, Part part, const U* x, U, U* sums) const {
    return sums[0] = keep<T>(Log ? x[0] : x[0] * x[1], part);
  }
  FASTOPS_INLINE void merge(double* total, const double* segment) const { total[0] += segment[0]; }
  FASTOPS_INLINE void finish(int64_t, int64_t rows, const V* found, V* state) const {
    state[0] = found[0];
    if constexpr (Log) {
      state[1] = V{};
      for (int64_t r = 0; r < rows; ++r) {
        const A sum = found[0][r], size = sum < 0 ? -sum : sum;
        state[0][r] = sum * lower_before(size);
        state[1][r] = lower_behind(size);
      }
    }
  }
  FASTOPS_INLINE U write(int64_t, int64_t, const U* x, const U* state) const {
    const U by = every<T>(scale);
    if constexpr (Log)
      return by * (x[0] - of_each([](V v) { return exp_raised_or_0<R>(v); }, x[1]) * state[0] * state[1]);
    else
      return by * x[1] * (x[0] - state[0]);
  }
};

// f(element, result) as tags: one type, or a half type and f32.
template <class F>
FASTOPS_INLINE void dispatch_forward(DType dtype, DType result, F f) {
  dispatch(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (sizeof(T) == 2)
      if (result == DType::f32) return f(t, tag<float>{});
    f(t, t);
  });
}
template <class F>
FASTOPS_INLINE void dispatch_backward(DType dtype, DType result, F f) {
  if (dtype == DType::f32 && result == DType::f16) return f(tag<float>{}, tag<f16>{});
  if (dtype == DType::f32 && result == DType::bf16) return f(tag<float>{}, tag<bf16>{});
  dispatch(dtype, [&](auto t) { f(t, t); });
}

// f(engine) of the policy with or without the logarithm.
template <template <class, class, bool> class Policy, class T, class R, class Problem, class F>
void with_engine(const Problem& a, F f) {
  auto with = [&]<class Op>(tag<Op>) {
    const Op op{a};
    f(RowEngine<Op>(op));
  };
  a.log ? with(tag<Policy<T, R, true>>{}) : with(tag<Policy<T, R, false>>{});
}
template <class F>
void run(const Softmax& a, F f) {
  dispatch_forward(a.dtype, a.result, [&](auto t, auto r) {
    with_engine<Forward, typename decltype(t)::type, typename decltype(r)::type>(a, f);
  });
}
template <class F>
void run(const SoftmaxBackward& a, F f) {
  dispatch_backward(a.dtype, a.result, [&](auto t, auto r) {
    with_engine<Backward, typename decltype(t)::type, typename decltype(r)::type>(a, f);
  });
}

}  // namespace

void softmax(const Softmax& a, int64_t row_begin, int64_t row_end) {
  run(a, [&](const auto& engine) { engine.rows(row_begin, row_end); });
}
void softmax_segments(const Softmax& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  run(a, [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}
void softmax_backward(const SoftmaxBackward& a, int64_t row_begin, int64_t row_end) {
  run(a, [&](const auto& engine) { engine.rows(row_begin, row_end); });
}
void softmax_backward_segments(const SoftmaxBackward& a, Pass pass, double* found, int64_t task_begin,
                               int64_t task_end) {
  run(a, [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}

}  // namespace fastops::FASTOPS_ISA
