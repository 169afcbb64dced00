// cross_entropy and log_prob: of each row the logarithm of Σ e^u, the target's u and, where asked for, Σ w·u or the
// entropy; and the gradient of the logits, which is elementwise in them. The formulas are in problem/cross_entropy.h.
#include "problem/cross_entropy.h"

#include "engine/row/launch.cuh"
#include "engine/row/online.cuh"
#include "engine/row/rows.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// A number of each row, of any dtype.
template <class A>
__device__ inline A number(const RowNumbers& numbers, int64_t row) {
  const int64_t at = row * numbers.stride;
  switch (numbers.dtype) {
    case DType::f16: return device::widen(static_cast<const device::f16*>(numbers.data)[at]);
    case DType::bf16: return device::widen(static_cast<const device::bf16*>(numbers.data)[at]);
    case DType::f32: return static_cast<A>(static_cast<const float*>(numbers.data)[at]);
    default: return static_cast<A>(static_cast<const double*>(numbers.data)[at]);
  }
}
template <class A>
__device__ inline void save(const RowNumbers& numbers, int64_t row, A x) {
  if (!numbers.data) return;
  const int64_t at = row * numbers.stride;
  switch (numbers.dtype) {
    case DType::f16: static_cast<device::f16*>(numbers.data)[at] = device::narrow<device::f16>(x); break;
    case DType::bf16: static_cast<device::bf16*>(numbers.data)[at] = device::narrow<device::bf16>(x); break;
    case DType::f32: static_cast<float*>(numbers.data)[at] = static_cast<float>(x); break;
    default: static_cast<double*>(numbers.data)[at] = static_cast<double>(x);
  }
}

// u of a logit, and its slope: du/dz.
template <class T>
struct Cap {
  using A = accumulate_t<T>;
  A scale, cap, ratio;  // cap 0: none; ratio: scale / cap

  explicit Cap(const LikelihoodRows& a)
      : scale(static_cast<A>(a.scale)),
        cap(static_cast<A>(a.softcap)),
        ratio(static_cast<A>(a.softcap == 0 ? 0 : a.scale / a.softcap)) {}
  __device__ A of(A z) const { return cap == 0 ? scale * z : cap * device::tanh_to<T>(ratio * z).value; }
};

// A row's target, and the weight of a class.
template <class T>
struct Targets {
  using A = accumulate_t<T>;
  int64_t n, first, classes, ignored;
  const int64_t* target;
  const A *weight, *weight_sum;

  explicit Targets(const LikelihoodRows& a)
      : n(a.n),
        first(a.first_class),
        classes(a.classes),
        ignored(a.ignore_index),
        target(a.target),
        weight(static_cast<const A*>(a.weight)),
        weight_sum(static_cast<const A*>(a.weight_sum)) {}
  __device__ bool is_class(int64_t y) const { return y >= 0 && y < classes; }
  __device__ A weight_of(int64_t y) const { return weight ? weight[y] : A(1); }
  __device__ A weight_at(int64_t column) const { return weight ? weight[first + column] : A(1); }
  __device__ A all_weights() const { return weight_sum ? *weight_sum : static_cast<A>(classes); }
  __device__ A each(A smoothing) const { return smoothing / static_cast<A>(classes); }
};

// The sums of a row: Σ e^u alone or, if General, also Σ w·u or Σ e^(u - max)·(u - max), and u may have a cap.
template <class A, bool General>
struct LikelihoodSum {
  OnlineSum<A> online;
};
template <class A>
struct alignas(16) LikelihoodSum<A, true> {
  OnlineSum<A> online;
  A other;
};

template <class T, bool General, int W>
struct Forward {
  using In = T;
  using Out = void;
  using Accumulate = accumulate_t<T>;
  using A = Accumulate;
  using Sum = LikelihoodSum<A, General>;
  using PartNumbers = Vector<A, kPartNumbers>;
  static constexpr plan::row::Ops kOp = General ? plan::row::kLikelihoodGeneral : plan::row::kLikelihood;
  static constexpr bool kPeak = sizeof(A) == 4, kPowers = true, kCenter = false, kResidual = false;
  static constexpr int kInputs = 1, kWidth = W, kColumns = 0;
  template <class Form>
  static constexpr int kResidentThreads = resident_threads<Forward, Form>(!General);
  struct Row {
    const T* input[1];
    int64_t target;
    bool skip, is_class;
    A of_target;  // its logit, or u under a softcap
  };

  bool log_prob, smooths, needs_entropy;
  RowsOf<T> logits;
  Targets<T> targets;
  Cap<T> cap;
  Exponent<A, sizeof(T) == 2> exponent;  // of u where there is a cap, else of z
  A smoothing, z_loss;
  RowNumbers result, lse, row_weight, entropy;
  PartNumbers* parts;

  explicit Forward(const LikelihoodForward& a)
      : log_prob(a.of == Likelihood::log_prob),
        smooths(a.smoothing != 0),
        needs_entropy(a.needs_entropy),
        logits(a.logits),
        targets(a),
        cap(a),
        exponent(a.softcap == 0 ? a.scale : 1),
        smoothing(static_cast<A>(a.smoothing)),
        z_loss(static_cast<A>(a.z_loss)),
        result(a.result),
        lse(a.lse),
        row_weight(a.row_weight),
        entropy(a.entropy),
        parts(static_cast<PartNumbers*>(a.parts)) {}

  __device__ Row row(int64_t r) const {
    const int64_t y = targets.target[r], column = y - targets.first;
    const T* logit = logits.at(r);
    const bool here = column >= 0 && column < targets.n;
    return {{logit}, y, y == targets.ignored, targets.is_class(y), here ? A(device::widen(logit[column])) : A(0)};
  }
  __device__ A padding() const { return exponent.padding(); }
  __device__ Sum zero() const {
    Sum sum = {};
    sum.online.max = exponent.kNone;
    return sum;
  }
  __device__ A peak(const Sum& sum) const { return sum.online.max; }
  __device__ A peak(A so_far, const Vector<T, kWidth>& v, int left) const {
    if constexpr (General)
      if (cap.cap != 0) return peak_of_capped(so_far, v, left);
    return exponent.peak(so_far, v);
  }
  // u is monotone in z, so that one tanh a vector is enough. It may be a few units below the largest u.
  __device__ A peak_of_capped(A so_far, const Vector<T, kWidth>& v, int left) const {
    const A sign = cap.ratio < 0 ? A(-1) : A(1);
    A z[kWidth], largest = exponent.kNone;
    device::widen(v, z);
#pragma unroll
    for (int k = 0; k < kWidth; ++k)
      if (k < left) largest = fmax(largest, sign * z[k]);
    return fmax(so_far, cap.of(sign * largest));
  }
  __device__ Sum raised(const Sum& sum, A peak) const {
    Sum raised = {};
    raised.online = exponent.raised(sum.online, peak);
    if constexpr (General) raised.other = needs_entropy ? moved(sum, peak) : sum.other;
    return raised;
  }
  __device__ Sum add(const Sum& a, const Sum& b) const {
    Sum sum = a;
    sum.online.sum += b.online.sum;
    if constexpr (General) sum.other += b.other;
    return sum;
  }
  __device__ Sum merge(const Sum& a, const Sum& b) const {
    Sum sum = {};
    sum.online = exponent.merge(a.online, b.online);
    if constexpr (General)
      sum.other = needs_entropy ? moved(a, sum.online.max) + moved(b, sum.online.max) : a.other + b.other;
    return sum;
  }
  // Σ e^(u - max)·(u - max) about a larger maximum.
  __device__ A moved(const Sum& sum, A max) const {
    const A d = exponent.scale * (sum.online.max - max), e = exponent.power(sum.online.max - max);
    return e > 0 ? device::product(e, sum.other + sum.online.sum * d) : A(0);
  }
  __device__ void add_powers(OnlineSum<A>& sum, const A (&u)[kWidth]) const {
    if constexpr (kPeak)
      exponent.add_powers(sum, u);
    else
      exponent.add(sum, u);
  }
  __device__ void add(Sum& sum, const A (&z)[1][kWidth], int64_t column, int left) const {
    if constexpr (!General) {
      add_powers(sum.online, z[0]);
    } else {
      A u[kWidth], terms[kWidth];
#pragma unroll
      for (int k = 0; k < kWidth; ++k) u[k] = z[0][k];
      if (cap.cap != 0) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) u[k] = k < left ? cap.of(u[k]) : exponent.padding();
      }
      const Sum before = sum;
      add_powers(sum.online, u);
      if (needs_entropy) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
          const A e = exponent.power(u[k], sum.online.max);
          terms[k] = e > 0 ? e * exponent.difference(u[k], sum.online.max) : e;
        }
        sum.other = moved(before, sum.online.max) + device::tree_sum(terms);
      } else if (smooths) {
        const A factor = cap.cap != 0 ? A(1) : cap.scale;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) terms[k] = k < left ? targets.weight_at(column + k) * (factor * u[k]) : A(0);
        sum.other += device::tree_sum(terms);
      }
    }
  }

  __device__ int finish(const Row& row, const Sum& sum, int64_t r, bool first) const {
    if (!first) return 0;
    const A u = General && cap.cap != 0 ? cap.of(row.of_target) : row.of_target;
    if (parts) {
      A other = 0;
      if constexpr (General) other = sum.other;
      parts[r] = row.skip ? PartNumbers{} : PartNumbers{{sum.online.max, sum.online.sum, u, other}};
    } else {
      save_row(row, sum, u, r);
    }
    return 0;
  }
  __device__ void save_row(const Row& row, const Sum& sum, A u, int64_t r) const {
    A found = 0, of_row = 0, log_sum = 0, weight = 0, entropy_of_row = 0;
    if (!row.skip) {
      log_sum = ::log(sum.online.sum);
      of_row = exponent.scale * sum.online.max + log_sum;
      const A loss = row.is_class ? log_sum - exponent.difference(u, sum.online.max) : A(NAN);  // lse - u[y]
      weight = row.is_class ? targets.weight_of(row.target) : A(1);
      found = log_prob ? -loss : (1 - smoothing) * weight * loss + z_loss * of_row * of_row;
      if constexpr (General) {
        if (smooths) found += targets.each(smoothing) * (of_row * targets.all_weights() - sum.other);
        entropy_of_row = log_sum - sum.other / sum.online.sum;
      }
    }
    save(result, r, found);
    save(lse, r, of_row);
    save(row_weight, r, weight);
    save(entropy, r, entropy_of_row);
  }

  // Row r of all parts' numbers, to results or to the numbers of one part.
  __device__ void merge_parts(const A* found, int64_t count, int64_t rows, int64_t r) const {
    Sum sum = zero();
    A u = 0;
    for (int64_t part = 0; part < count; ++part) {
      const A* of_part = found + (part * rows + r) * kPartNumbers;  // of any alignment
      Sum next = {};
      next.online = {of_part[0], of_part[1]};
      if constexpr (General) next.other = of_part[3];
      sum = part == 0 ? next : merge(sum, next);
      u += of_part[2];
    }
    if (parts) {
      A other = 0;
      if constexpr (General) other = sum.other;
      parts[r] = {{sum.online.max, sum.online.sum, u, other}};
      return;
    }
    const int64_t y = targets.target[r];
    save_row({{nullptr}, y, y == targets.ignored, targets.is_class(y), u}, sum, u, r);
  }
};

constexpr int kMergeThreads = 128;
template <class A>
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const __grid_constant__ Forward<A, true, 1> op, const A* found, int64_t count, int64_t rows) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t r = int64_t{blockIdx.x} * kMergeThreads + threadIdx.x;
  if (r < rows) op.merge_parts(found, count, rows, r);
}
template <class A>
int merge(const LikelihoodMerge& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, kMergeThreads));
  return launch_kernel(&merge_kernel<A>, launch_config(blocks, kMergeThreads, stream), Forward<A, true, 1>(a),
                       static_cast<const A*>(a.found), a.count, a.rows);
}

// `general`: with a cap, smoothing or an entropy's gradient.
template <class T, bool General, int W>
struct Backward : WithoutSum {
  using In = T;
  using Out = T;
  using Accumulate = accumulate_t<T>;
  using A = Accumulate;
  static constexpr plan::row::Ops kOp =
      General ? plan::row::kLikelihoodGeneralBackward : plan::row::kLikelihoodBackward;
  static constexpr bool kPeak = false, kPowers = true, kCenter = false, kResidual = false;
  static constexpr int kInputs = 1, kWidth = W, kColumns = 0;
  template <class Form>
  static constexpr int kResidentThreads = resident_threads<Backward, Form>(false);
  // du[j] = p[j]·(of_p + of_plog·log p[j]) - of_weight·w[j], less of_target for the target.
  struct State {
    A lse, of_p, of_plog, of_weight, of_target;
  };
  struct Row {
    const T* input[1];
    T* output;
    int64_t target;  // its column
    bool skip;
    State of;
  };

  bool log_prob;
  RowsOf<T> logits;
  T* grad_input;
  int64_t stride;
  Targets<T> targets;
  Cap<T> cap;
  Exponent<A, sizeof(T) == 2> exponent;  // of a logarithm
  A smoothing, z_loss;
  RowNumbers lse, grad, divisor, grad_lse, entropy, grad_entropy;

  explicit Backward(const LikelihoodBackward& a)
      : log_prob(a.of == Likelihood::log_prob),
        logits(a.logits),
        grad_input(static_cast<T*>(a.grad_input)),
        stride(a.grad_input_stride),
        targets(a),
        cap(a),
        exponent(1),
        smoothing(static_cast<A>(a.smoothing)),
        z_loss(static_cast<A>(a.z_loss)),
        lse(a.lse),
        grad(a.grad),
        divisor(a.divisor),
        grad_lse(a.grad_lse),
        entropy(a.entropy),
        grad_entropy(a.grad_entropy) {}

  __device__ Row row(int64_t r) const {
    const int64_t y = targets.target[r];
    return {{logits.at(r)}, grad_input + r * stride, y - targets.first, y == targets.ignored, state(r, y)};
  }
  __device__ State state(int64_t r, int64_t y) const {
    State of = {};
    A g = grad.data ? number<A>(grad, r) : A(0);
    if (divisor.data && g != 0) g /= number<A>(divisor, r);
    if (!targets.is_class(y)) g = NAN;
    of.lse = number<A>(lse, r);
    if (log_prob) {
      const A h = General && grad_entropy.data ? number<A>(grad_entropy, r) : A(0);
      of.of_p = h == 0 ? -g : -g - h * number<A>(entropy, r);
      of.of_plog = -h;
      of.of_target = -g;
    } else {
      const A weight = targets.is_class(y) ? targets.weight_of(y) : A(1);
      const A each = General ? targets.each(smoothing) : A(0);
      of.of_p =
          g * ((1 - smoothing) * weight + (each == 0 ? A(0) : each * targets.all_weights()) + 2 * z_loss * of.lse);
      if (grad_lse.data) of.of_p += number<A>(grad_lse, r);
      of.of_weight = g * each;
      of.of_target = g * (1 - smoothing) * weight;
    }
    return of;
  }
  __device__ A padding() const { return 0; }
  __device__ int finish(const Row&, int64_t, bool) const { return 0; }
  __device__ void write(const A (&z)[1][kWidth], const Row& row, int, int64_t column, A (&y)[kWidth]) const {
    const State& of = row.of;
    const int64_t from_column = row.target - column;
    const bool has_target = static_cast<uint64_t>(from_column) < kWidth;
    const int target = has_target ? static_cast<int>(from_column) : -1;
    if (row.skip) {
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = 0;
      return;
    }
    if constexpr (!General) {
      const A factor = of.of_p * cap.scale;
#pragma unroll
      for (int k = 0; k < kWidth; ++k) y[k] = factor * exponent.power(fma(z[0][k], cap.scale, -of.lse));
      if (has_target) {
        const A less = of.of_target * cap.scale;
#pragma unroll
        for (int k = 0; k < kWidth; ++k) y[k] = k == target ? y[k] - less : y[k];
      }
    } else {
      const int left = static_cast<int>(min(targets.n - column, int64_t{kWidth}));
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        A u, slope = cap.scale;
        if (cap.cap != 0) {
          const auto tangent = device::tanh_to<T>(cap.ratio * z[0][k]);
          u = cap.cap * tangent.value;
          slope *= tangent.slope;
        } else {
          u = cap.scale * z[0][k];
        }
        const A log_p = u - of.lse, p = exponent.power(log_p);
        A du = p * of.of_p;
        if (of.of_plog != 0) du = p > 0 ? fma(p * of.of_plog, log_p, du) : du;
        if (of.of_weight != 0 && k < left) du -= of.of_weight * targets.weight_at(column + k);
        y[k] = (k == target ? du - of.of_target : du) * slope;
      }
    }
  }
};

template <template <class, bool, int> class Op, class Problem>
int launch(const Problem& a, bool general, void* stream) {
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return dispatch_bool(general, [&](auto is_general) -> int {
      constexpr bool kIsGeneral = decltype(is_general)::value || sizeof(T) == 8;  // the kernels of f64 are the largest
      constexpr plan::row::Ops kOp = Op<T, kIsGeneral, 1>::kOp;
      return launch_rows<kOp, T, T>({kOp, a.dtype, a.dtype, a.n}, a.rows, static_cast<cudaStream_t>(stream),
                                    [&](auto width) { return Op<T, kIsGeneral, decltype(width)::value>(a); });
    });
  });
}

}  // namespace

int likelihood(const LikelihoodForward& a, void* stream) {
  return launch<Forward>(a, a.softcap != 0 || a.smoothing != 0 || a.needs_entropy, stream);
}

int likelihood_merge(const LikelihoodMerge& a, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  return a.dtype == DType::f64 ? merge<double>(a, on) : merge<float>(a, on);
}

int likelihood_backward(const LikelihoodBackward& a, void* stream) {
  return launch<Backward>(a, a.softcap != 0 || a.smoothing != 0 || a.grad_entropy.data, stream);
}

}  // namespace fastops::FASTOPS_ARCH
