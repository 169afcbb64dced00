// The forward of norms over many rows of some warps each, two vectors a thread, or four or six narrow ones, without a
// residual: a block takes two rows. It widens parameters once for both and sums both in the same exchanges, and half as many
// blocks start. Few rows, and those with a residual, go one by one to as many threads (norm_forward_rows.cuh), so that a row's
// bits are the same.
#include "dependent.cuh"
#include "norm_forward.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kRows = 2;
constexpr int kTwoWarps = 2 * kWarp, kFourWarps = 4 * kWarp, kEightWarps = 8 * kWarp;
// Threads of a multiprocessor, as many as their registers allow.
constexpr int kPairThreads = 1024;
template <class T, class P, int Team, int Vectors>
constexpr int kResident = Team == kEightWarps      ? kPairThreads
                          : Vectors == 6           ? 640
                          : sizeof(P) == sizeof(T) ? 896
                                                   : 768;

// Team: a row's threads; at most so many, if they are not Full of vectors.
template <Norm N, class T, class P, int Team, bool Full, int W = kVector<T>, int Vectors = kVectors>
__global__ void __launch_bounds__(Team, resident_blocks(Team, kResident<T, P, Team, Vectors>))
    forward_pair_kernel(const __grid_constant__ Forward<T, P> a) {
  using A = accumulate_t<T>;
  constexpr int D = kDistanceSums<T>;
  constexpr bool kRounds = kInRounds<N, T, P, W, Vectors, 0>;
  using Row = Vector<T, W>;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int team = Full || Team == kTwoWarps ? Team : static_cast<int>(blockDim.x), thread = threadIdx.x;
  if constexpr (Team == kFourWarps) __builtin_assume(team <= kFourWarps);
  if constexpr (Team == kEightWarps) __builtin_assume(team > kFourWarps);
  const int n = Full ? Team * Vectors * W : static_cast<int>(a.n), vectors = n / W;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRows;
  auto live = [&](int r) { return begin + r < a.rows; };  // a block with one row takes that twice

  const Places<Vectors, Full> mine(vectors, team, thread);
  Row x[kRows][Vectors];
  T first[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const T* input = a.input + (live(r) ? begin + r : begin) * a.input_stride;
#pragma unroll
    for (int g = 0; g < Vectors; ++g) x[r][g] = reinterpret_cast<const Row*>(input)[mine.at[g]];
    first[r] = N == Norm::layer && !kRounds ? *input : T{};
  }
  Vector<P, W> w[Vectors], b[Vectors];
  const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    w[g] = weight.template vector<W>(mine.at[g]);
    if constexpr (N == Norm::layer) b[g] = bias.template vector<W>(mine.at[g]);
  }

  A d[kRows][Vectors][W];  // elements, then distances from the mean; in rounds, the latter alone
  auto each_vector = [&](auto f) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int g = 0; g < Vectors; ++g) f(r, g, d[r][g]);
  };
  auto sum_up = [&](auto& sums, auto& scratch) {
    team_sum(sums, team / kWarp, thread / kWarp, scratch, [] { __syncthreads(); });
  };
  Moments<A> moments[kRows] = {};
  const unsigned zero = device::unknown_zero();
  auto widen_again = [&](int r, int g, A(&c)[W]) {
    device::hold_narrow(x[r][g], zero);
    device::widen(x[r][g], c);
  };
  if constexpr (kRounds) {
    __shared__ Scratch<A, 2 * kRows> scratch;
    __shared__ A of_row[kRows];  // an element
    auto sums_from = [&](const A(&numbers)[kRows], int) {
      Sums<A, 2 * kRows> sums = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int g = 0; g < Vectors; ++g) {
          A c[W];
          widen_again(r, g, c);
          if (g == 0 && thread == 0) of_row[r] = c[0];
          add_both(sums, r, mine.own[g], c, numbers[r], a.scale);
        }
      sum_up(sums, scratch);
      return sums;
    };
    find_moments(a, A(n), moments, sums_from, [&](int r) { return of_row[r]; });
  } else {
    __shared__ Scratch<A, kRows> scratch;
    Sums<A, kRows> totals = {};
    each_vector([&](int r, int g, A(&c)[W]) {
      device::widen(x[r][g], c);
      const A part = N == Norm::layer ? tree_sum<W>(c) * a.scale : square_sum<W>(c);
      totals.at[r] += mine.own[g] ? part : A(0);
    });
    sum_up(totals, scratch);
    if constexpr (N == Norm::layer) {
      __shared__ Scratch<A, kRows * D> distance_scratch;
      PartMean<A> mean[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        mean[r] = part_mean<T>(totals.at[r], device::widen(first[r]), A(n), a.inverse_n, a.scale, a.unscale);
      Sums<A, D> distances[kRows] = {};
      each_vector([&](int r, int g, A(&c)[W]) {
#pragma unroll
        for (int k = 0; k < W; ++k) c[k] -= mean[r].mean;
        add_distances<T>(distances[r], mine.own[g], c);
      });
      Sums<A, kRows * D> all;
#pragma unroll
      for (int k = 0; k < kRows * D; ++k) all.at[k] = distances[k / D].at[k % D];
      sum_up(all, distance_scratch);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < D; ++k) distances[r].at[k] = all.at[r * D + k];
        moments[r] = moments_about<T>(mean[r], distances[r], A(n), a.inverse_n);
      }
    } else {
#pragma unroll
      for (int r = 0; r < kRows; ++r) moments[r].squares = totals.at[r];
    }
  }

  Scale<A> scaled[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) scaled[r] = scale_of<N>(a, moments[r], begin + r, thread == 0 && live(r));
#pragma unroll
  for (int g = 0; g < Vectors; ++g)
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      A(&c)[W] = d[r][g];
      if constexpr (kRounds) {
        widen_again(r, g, c);
#pragma unroll
        for (int k = 0; k < W; ++k) c[k] -= moments[r].mean;
      }
      scale<N, P, W, A>(c, scaled[r], w[g], b[g], a.offset);
      if (mine.own[g] && live(r))
        reinterpret_cast<Row*>(a.output + (begin + r) * n)[mine.at[g]] = device::narrow_all<T>(c);
    }
}

// ---- host ------------------------------------------------------------------------------------------------------------

template <ForwardTable::Kernel K, plan::Access Access>
int launch(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  return with_form<ForwardTable, K, Access>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      constexpr Norm N = decltype(norm)::value;
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (Form::is_for(kProblem<N, T, P> | plan::kAlone)) {
        constexpr bool kFull = K == ForwardTable::Kernel::two_full_rows;
        constexpr int W = Access == plan::Access::vec16 ? kVector<T> : 4, Vectors = Form::rule.team.each;
        return in_launches<N>(Forward<T, P>(args), kRows, [&](const Forward<T, P>& a, unsigned blocks) -> int {
          return launch_kernel(&forward_pair_kernel<N, T, P, Form::schedule.threads, kFull, W, Vectors>,
                               launch_config(blocks, static_cast<unsigned>(plan.order.threads), stream), a);
        });
      }
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace

int norm_forward_pairs(const NormForward& a, const Plan& plan, cudaStream_t stream) {
  using Kernel = ForwardTable::Kernel;
  if (plan.by().kernel == Kernel::two_full_rows)
    return launch<Kernel::two_full_rows, plan::Access::vec16>(a, plan, stream);
  return plan.order.access == plan::Access::vec16 ? launch<Kernel::two_rows, plan::Access::vec16>(a, plan, stream)
                                                  : launch<Kernel::two_rows, plan::Access::vec8>(a, plan, stream);
}

}  // namespace fastops::FASTOPS_ARCH
