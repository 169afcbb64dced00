// The gradients of the norms by teams that walk over rows (engine/row/walk.cuh). The formulas are in norm_backward.cuh, the
// choice of a kernel in cpp/plan/norm_backward.h.
#include <iterator>

#include "engine/row/walk.cuh"
#include "norm_backward.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using plan::norm_backward::kRingWarps;
using plan::norm_backward::kThreads;
using plan::norm_backward::word_threads;
using RuleKernel = plan::norm_backward::Kernel;

// T: dtype of the rows. P: dtype of the weight and the bias.
template <class T, class P, Norm N>
struct NormGradient : Backward<T, P> {
  using In = T;
  using ColumnType = P;
  using A = accumulate_t<T>;
  using Numbers = RowNumbers<A>;
  static constexpr int kSums = fastops::FASTOPS_ARCH::kSums<N>, kColumnSums = kSums;
  // An rms norm's rows in registers: the loop has few instructions, so that waiting blocks of the next kernel slow it down.
  template <class Form>
  static constexpr bool kStartsLate = N == Norm::rms && Form::kAhead == Ahead::vectors && Form::kWidth == kVector<T>;

  using Backward<T, P>::Backward;

  __device__ const T* input(int k, int64_t r) const {
    return k == 0 ? Backward<T, P>::input + r * this->input_stride : this->grad + r * this->grad_stride;
  }
  __device__ const T* added(int64_t r) const { return this->grad_sum + r * this->grad_sum_stride; }
  __device__ T* output(int64_t r) const { return this->grad_input + r * this->n; }
  __device__ bool adds() const { return this->grad_sum; }
  __device__ bool writes() const { return this->grad_input; }
  __device__ bool saves() const { return Backward<T, P>::partial || this->whole; }
  __device__ A* partial(int block) const {
    return this->whole ? nullptr : Backward<T, P>::partial + static_cast<int64_t>(block) * kColumnSums * this->n;
  }
  __device__ Numbers numbers(int64_t r) const { return row_numbers<N>(*this, r); }
  __device__ Column<P> weight() const { return {Backward<T, P>::weight, A(1)}; }
  template <int W>
  __device__ void first_pass(const Numbers& numbers, int left, const A (&w)[W], A (&x)[2][W], Sums<A, kSums>& sums,
                             A* const (&column_sums)[kColumnSums]) const {
    if constexpr (N == Norm::layer && W <= 2) {
      // Padding by the mean: x - mean is 0, which does not overflow.
#pragma unroll
      for (int k = 0; k < W; ++k) x[0][k] = k < left ? x[0][k] : numbers.mean;
    }
    fastops::FASTOPS_ARCH::first_pass<N, W, A>(x[0], x[1], W <= 2 || left > 0, w, this->offset, numbers, sums,
                                               column_sums[0], column_sums[kColumnSums - 1]);
  }
  __device__ Sums<A, kSums> means(Sums<A, kSums> sums) const {
    divide(sums, this->inverse_n);
    return sums;
  }
  template <int W>
  __device__ void second_pass(const A (&x)[2][W], const Sums<A, kSums>& means, const Numbers& numbers,
                              A (&y)[W]) const {
    fastops::FASTOPS_ARCH::second_pass<N, W, A>(x[0], x[1], means, numbers.rstd, y);
  }
  template <int W>
  __device__ void second_pass(const A (&x)[2][W], const Sums<A, kSums>& means, const Numbers& numbers,
                              const A (&added)[W], A (&y)[W]) const {
    fastops::FASTOPS_ARCH::second_pass<N, W, A>(x[0], x[1], means, numbers.rstd, added, y);
  }
  template <bool kWhole, int W>
  __device__ void save(int k, int column, int left, const A (&values)[W]) const {
    if constexpr (kWhole) {
      store_parameter_grad<W>(*this, k, column, values);
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j)
        if (j < left) store_parameter_grad<1>(*this, k, column + j, {values[j]});
    }
  }
  template <bool kWhole>
  __device__ void add_parts(const A* parts, int teams, A* to) const {
    fastops::FASTOPS_ARCH::add_parts<kWhole ? kVector<A> : 1>(*this, parts, teams,
                                                              static_cast<int64_t>(kColumnSums) * this->n, to);
  }
};

// The form of rule number kRule for rows of T.
template <int kRule, RuleKernel kKernel, class T, Adds kAdds>
constexpr auto form_of() {
  constexpr auto& rule = plan::norm_backward::kRules[kRule];
  constexpr int kLanes = rule.team.team == plan::Team::lanes ? rule.team.threads : 0;
  if constexpr (kKernel == RuleKernel::registers) {
    constexpr int W = rule.access == plan::Access::vec16 ? kVector<T> : 4;
    return WalkForm<Ahead::vectors, W, rule.team.each, kLanes, kAdds, kLanes ? kLaneThreads : kThreads,
                    kLanes ? kThreads / kLaneThreads : 1>{};
  } else if constexpr (kKernel == RuleKernel::words) {
    return WalkForm<Ahead::words, sizeof(T) == 2 ? 2 : 1, rule.team.each, kLanes, kAdds,
                    kLanes ? kLaneThreads : kThreads, kLanes ? word_threads(true, sizeof(T)) / kLaneThreads : 1>{};
  } else {
    return WalkForm<Ahead::ring, kVector<T>, rule.team.each, 0, kAdds, kRingWarps * kWarp, 1>{};
  }
}
template <int kRule, RuleKernel kKernel, class T, Adds kAdds>
using Form = decltype(form_of<kRule, kKernel, T, kAdds>());

// Whether the kernel is compiled twice, with and without grad_sum. For these rows of halves a branch takes 1.05 to 1.18 times
// as long.
template <int kRule, RuleKernel kKernel, class T>
constexpr bool kSplitsByGradSum = sizeof(T) == 2 && kKernel != RuleKernel::ring &&
                                  (plan::norm_backward::kRules[kRule].team.team == plan::Team::warps ||
                                   plan::norm_backward::kRules[kRule].access == plan::Access::vec8);

template <int kRule, RuleKernel kKernel, class T, Norm N>
constexpr bool has_kernel() {
  constexpr auto& rule = plan::norm_backward::kRules[kRule];
  constexpr auto kTypes = sizeof(T) == 8 ? plan::kF64 : sizeof(T) == 4 ? plan::kF32 : plan::kHalves;
  const bool is_named =
      (rule.problems() & (N == Norm::layer ? plan::kLayer : plan::kRms)) != 0 && (rule.problems() & kTypes) != 0;
  bool has_schedule = false;
  for (const auto& schedule : rule.schedules) has_schedule = has_schedule || schedule.kernel == kKernel;
  return is_named && has_schedule;
}

// Calls f(op, kernel) with the kernel of rule kRule.
template <RuleKernel kKernel, class T, class P, Norm N, int kRule, class F>
int with_rule(const NormBackward& a, const F& f) {
  if constexpr (has_kernel<kRule, kKernel, T, N>()) {
    using Op = NormGradient<T, P, N>;
    auto run = [&](auto form) -> int {
      using Kernel = decltype(&walk_kernel<Op, decltype(form)>);
      return f(Op(a), std::integral_constant<Kernel, &walk_kernel<Op, decltype(form)>>{});
    };
    if constexpr (!kSplitsByGradSum<kRule, kKernel, T>)
      return run(Form<kRule, kKernel, T, Adds::if_given>{});
    else
      return a.grad_sum ? run(Form<kRule, kKernel, T, Adds::yes>{}) : run(Form<kRule, kKernel, T, Adds::no>{});
  }
  return cudaErrorInvalidValue;
}
// Calls f(op, kernel) with the kernel of the plan's rule.
template <RuleKernel kKernel, class F>
int with_walk(const NormBackward& a, const Plan& plan, const F& f) {
  return dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    constexpr int kCount = static_cast<int>(std::size(plan::norm_backward::kRules));
    return dispatch_number<kCount>(plan.rule, [&](auto rule) -> int {
      return with_rule<kKernel, T, P, decltype(norm)::value, decltype(rule)::value>(a, f);
    });
  });
}

template <RuleKernel kKernel>
int launch_walk(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  const int warps = std::max(1, plan.order.threads / kWarp);
  const int words = static_cast<int>(plan::units_of(row_of(a), plan.order.access));
  const WalkShape shape{warps, words / warps, words % warps, 1, 0};
  return with_walk<kKernel>(a, plan, [&](const auto& op, auto kernel) -> int {
    return launch_kernel(
        decltype(kernel)::value,
        launch_config(static_cast<unsigned>(a.chunks), plan.threads, stream, parts_bytes(a, plan.teams)), op, shape);
  });
}

ClusterShape cluster_of(const Plan& plan) {
  return {plan.threads, static_cast<int>(plan.order.blocks), plan.ring.bytes};
}

}  // namespace

int norm_backward_registers(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  return launch_walk<RuleKernel::registers>(a, plan, stream);
}
int norm_backward_words(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  return launch_walk<RuleKernel::words>(a, plan, stream);
}
int norm_backward_ring(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  const ClusterShape cluster = cluster_of(plan);
  const WalkShape shape{plan.order.threads / kWarp, 0, 0, cluster.blocks, plan.ring.stages};
  return with_walk<RuleKernel::ring>(a, plan, [&](const auto& op, auto kernel) -> int {
    return launch_clusters<decltype(kernel)::value>(cluster, a.chunks, stream, op, shape);
  });
}
int64_t norm_backward_ring_clusters(const NormBackward& a, const Plan& plan) {
  int64_t clusters = 1;
  with_walk<RuleKernel::ring>(a, plan, [&](const auto&, auto kernel) -> int {
    clusters = resident_clusters<decltype(kernel)::value>(cluster_of(plan));
    return cudaSuccess;
  });
  return clusters;
}

}  // namespace fastops::FASTOPS_ARCH
