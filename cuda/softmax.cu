// softmax: e^(u - max) / Σ e^(u - max) of u = scale·x, its logarithm u - max - log Σ, and their gradients.
#include "engine/row/launch.cuh"
#include "engine/row/online.cuh"
#include "engine/row/rows.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <class T, class R, int W>
struct Forward {
  using In = T;
  using Out = R;
  using Accumulate = accumulate_t<T>;
  using A = Accumulate;
  using Sum = OnlineSum<A>;
  static constexpr plan::row::Ops kOp = plan::row::kSoftmax;
  static constexpr bool kPeak = sizeof(A) == 4;  // two powers an element would cost f64 digits
  static constexpr bool kPowers = true, kCenter = false, kResidual = false;
  static constexpr int kInputs = 1, kWidth = W, kColumns = 0;
  template <class Form>
  static constexpr int kResidentThreads = resident_threads<Forward, Form>(true);
  struct Row {
    static constexpr bool skip = false;
    const T* input[1];
    R* output;
  };
  struct State {
    A max, term;  // 1 / Σ, or log Σ
  };

  bool log;
  int64_t n;
  RowsOf<T> input;
  R* output;
  Exponent<A, sizeof(R) == 2> exponent;

  explicit Forward(const Softmax& a)
      : log(a.log), n(a.n), input(a.input), output(static_cast<R*>(a.output)), exponent(a.scale) {}

  __device__ Row row(int64_t r) const { return {{input.at(r)}, output + r * n}; }
  __device__ Sum zero() const { return {exponent.kNone, 0}; }
  __device__ A peak(const Sum& sum) const { return sum.max; }
  __device__ A peak(A so_far, const Vector<T, kWidth>& v, int) const { return exponent.peak(so_far, v); }
  __device__ Sum raised(const Sum& sum, A peak) const { return exponent.raised(sum, peak); }
  __device__ Sum add(const Sum& a, const Sum& b) const { return {a.max, a.sum + b.sum}; }
  __device__ Sum merge(const Sum& a, const Sum& b) const { return exponent.merge(a, b); }
  // If kPeak, replaces the elements by their powers, unless the output is the logarithm.
  __device__ void add(Sum& sum, A (&x)[1][kWidth], int64_t, int) const {
    if constexpr (kPeak) {
      A powers[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) powers[k] = exponent.power(x[0][k], sum.max);
      sum.sum += device::tree_sum(powers);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) x[0][k] = log ? x[0][k] : powers[k];
    } else {
      exponent.add(sum, x[0]);
    }
  }
  __device__ void prepare(A (&x)[1][kWidth], A peak) const {
    if (log) return;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) x[0][k] = exponent.power(x[0][k], peak);
  }
  __device__ A padding() const { return exponent.padding(); }
  __device__ State finish(const Row&, const Sum& sum, int64_t, bool) const {
    return {sum.max, log ? ::log(sum.sum) : 1 / sum.sum};
  }
  __device__ State weighted(const State& of, A peak) const {
    return {of.max, log ? of.term : exponent.power(peak - of.max) * of.term};
  }
  __device__ void write(const A (&x)[1][kWidth], const Row&, const State& of, int64_t, A (&y)[kWidth]) const {
    if (log) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = exponent.difference(x[0][k], of.max) - of.term;
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = (kPeak ? x[0][k] : exponent.power(x[0][k], of.max)) * of.term;
    }
  }
};

template <class T, class R, int W>
struct Backward {
  using In = T;
  using Out = R;
  using Accumulate = accumulate_t<T>;
  using A = Accumulate;
  static constexpr plan::row::Ops kOp = plan::row::kSoftmaxBackward;
  static constexpr bool kPeak = false, kPowers = true, kCenter = false, kResidual = false;
  static constexpr int kInputs = 2, kWidth = W, kColumns = 0;
  template <class Form>
  static constexpr int kResidentThreads = resident_threads<Backward, Form>(false);
  struct Sum {
    A sum;
  };
  struct Row {
    static constexpr bool skip = false;
    const T* input[2];
    R* output;
  };
  using State = A;

  bool log;
  int64_t n;
  RowsOf<T> grad, output;
  R* grad_input;
  A scale;
  Exponent<A, sizeof(R) == 2> exponent;

  explicit Backward(const SoftmaxBackward& a)
      : log(a.log),
        n(a.n),
        grad(a.grad),
        output(a.output),
        grad_input(static_cast<R*>(a.grad_input)),
        scale(static_cast<A>(a.scale)),
        exponent(1) {}

  __device__ Row row(int64_t r) const { return {{grad.at(r), output.at(r)}, grad_input + r * n}; }
  __device__ Sum zero() const { return {0}; }
  __device__ Sum merge(const Sum& a, const Sum& b) const { return {a.sum + b.sum}; }
  __device__ A padding() const { return 0; }
  __device__ void add(Sum& sum, const A (&x)[2][kWidth], int64_t, int) const {
    A terms[kWidth];
#pragma unroll
    for (int k = 0; k < kWidth; ++k) terms[k] = log ? x[0][k] : x[0][k] * x[1][k];
    sum.sum += device::tree_sum(terms);
  }
  __device__ State finish(const Row&, const Sum& sum, int64_t, bool) const { return sum.sum; }
  __device__ void write(const A (&x)[2][kWidth], const Row&, const State& sum, int64_t, A (&y)[kWidth]) const {
    if (log) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = scale * fma(-exponent.power(x[1][k]), sum, x[0][k]);
    } else {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = scale * (x[1][k] * (x[0][k] - sum));
    }
  }
};

// f(tag<T>, tag<R>): what is read and what is written, the same or a half type and f32.
template <class F>
int dispatch_pair(DType read, DType written, F f) {
  return dispatch(read, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    if constexpr (sizeof(T) == 2) {
      if (written == DType::f32) return f(t, tag<float>{});
    } else if constexpr (sizeof(T) == 4) {
      if (written == DType::f16) return f(t, tag<device::f16>{});
      if (written == DType::bf16) return f(t, tag<device::bf16>{});
    }
    return f(t, t);
  });
}

}  // namespace

int softmax(const Softmax& a, void* stream) {
  return dispatch_pair(a.dtype, a.result, [&](auto t, auto r) -> int {
    using T = typename decltype(t)::type;
    using R = typename decltype(r)::type;
    if constexpr (sizeof(R) >= sizeof(T))
      return launch_rows<plan::row::kSoftmax, T, R>(
          {plan::row::kSoftmax, a.dtype, a.result, a.n}, a.rows, static_cast<cudaStream_t>(stream),
          [&](auto width) { return Forward<T, R, decltype(width)::value>(a); });
    return cudaErrorInvalidValue;
  });
}

int softmax_backward(const SoftmaxBackward& a, void* stream) {
  return dispatch_pair(a.dtype, a.result, [&](auto t, auto r) -> int {
    using T = typename decltype(t)::type;
    using R = typename decltype(r)::type;
    if constexpr (sizeof(R) <= sizeof(T))
      return launch_rows<plan::row::kSoftmaxBackward, T, R>(
          {plan::row::kSoftmaxBackward, a.dtype, a.result, a.n}, a.rows, static_cast<cudaStream_t>(stream),
          [&](auto width) { return Backward<T, R, decltype(width)::value>(a); });
    return cudaErrorInvalidValue;
  });
}

}  // namespace fastops::FASTOPS_ARCH
