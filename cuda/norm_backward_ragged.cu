// The backward of the norms for rows that may start at any element and fit the registers, in words; see norm_words.cuh and,
// for the walk over rows and the sums over them, norm_backward.cu. Here a row of halves that starts within 4 bytes is read
// in words as well, each with the second half of the word before in front: what a lane has of a row, its neighbour's word
// included, is put together only when the row's turn comes, for to do so waits for the memory.
#include "dependent.cuh"
#include "norm_backward.cuh"
#include "norm_words.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

using plan::norm_backward::kMostWarps;
using plan::norm_backward::word_threads;

// Lanes: those of a row; 0: `warps` warps, which have `each` words of it, the first `more` of them one word more.
template <Norm N, class T, class P, int Words, int Checked, int Lanes, bool GradSum>
__global__ void __launch_bounds__(Lanes ? kLaneThreads : kMostWarps * kWarp,
                                  Lanes ? word_threads(true, sizeof(T)) / kLaneThreads : 1)
    backward_ragged_kernel(const __grid_constant__ Backward<T, P> a, int warps, int each, int more) {
  using A = accumulate_t<T>;
  constexpr int W = kWord<T>, S = kSums<N>, Step = Lanes ? Lanes : kWarp;
  __shared__ Scratch<A, S> scratch[Lanes ? 1 : 2][Lanes ? 1 : kMostWarps / 2];
  const int team = Lanes ? Lanes : warps * kWarp, which = threadIdx.x / team;
  const int teams = blockDim.x / team, n = static_cast<int>(a.n);
  const int rows = static_cast<int>(a.rows);
  const int warp = Lanes ? 0 : threadIdx.x % team / kWarp;
  wait_for_earlier_kernels();

  Part<Words, Checked, Step, W> part;
  {
    const int begin = warp * each + min(warp, more), end = begin + each + (warp < more ? 1 : 0);
    part.at = (begin + static_cast<int>(threadIdx.x) % Step) * W;
    part.left = min(end * W, n) - part.at;
  }
  Vector<P, W> w[Words];
  if (a.weight) {
    part.fetch(w, a.weight, 0, Words);
  } else {
#pragma unroll
    for (int g = 0; g < Words; ++g) w[g] = *reinterpret_cast<const Vector<P, W>*>(&kOne<P>);
  }
  A weight_sum[Words][W] = {}, bias_sum[N == Norm::layer ? Words : 1][W] = {};

  WordsAhead<T, Words, Checked, Step> next_x, next_grad;
  RowNumbers<A> next;
  auto fetch = [&](int row) {
    next = row_numbers<N>(a, row);
    if (row < rows) {
      next_x.fetch(part, a.input + row * a.input_stride);
      next_grad.fetch(part, a.grad + row * a.grad_stride);
    } else {
      next_x.clear();
      next_grad.clear();
    }
  };
  const int step = gridDim.x * teams;
  int row = which * gridDim.x + blockIdx.x, turn = 0;
  fetch(row);
  let_next_kernel_start();
  // All teams take as many turns: their threads meet.
  for (int base = 0; base < rows; base += step, row += step) {
    const RowNumbers<A> numbers = next;
    A h[Words][W], grad[Words][W];
    next_x.settle(part);
    next_grad.settle(part);
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      device::widen(next_x.x[g], h[g]);
      device::widen(next_grad.x[g], grad[g]);
      // What lies outside has no grad, and at the mean nothing overflows.
      if constexpr (N == Norm::layer) {
#pragma unroll
        for (int k = 0; k < W; ++k) h[g][k] = part.has(g, k + 1) ? h[g][k] : numbers.mean;
      }
    }
    WordsAhead<T, Words, Checked, Step> grad_sum;
    if constexpr (GradSum) {
      if (row < rows)
        grad_sum.fetch(part, a.grad_sum + row * a.grad_sum_stride);
      else
        grad_sum.clear();
    }
    fetch(row + step);
    Sums<A, S> sums = {};
#pragma unroll
    for (int g = 0; g < Words; ++g)
      first_pass<N, W, A>(h[g], grad[g], true, w[g], a.offset, numbers, sums, weight_sum[g],
                          bias_sum[N == Norm::layer ? g : 0]);
    if constexpr (Lanes) {
      lane_sum<Lanes>(sums);
    } else {
      team_sum(sums, warps, warp, scratch[turn][which], TeamBarrier{which, team});
      turn ^= 1;
    }
    divide(sums, a.inverse_n);
    if constexpr (GradSum) grad_sum.settle(part);
    if (!a.grad_input || row >= rows) continue;
    Vector<T, W> out[Words];
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      if constexpr (GradSum)
        second_pass<N, W, A>(h[g], grad[g], sums, numbers.rstd, grad_sum.x[g]);
      else
        second_pass<N, W, A>(h[g], grad[g], sums, numbers.rstd);
      out[g] = device::narrow_all<T>(h[g]);
    }
    part.put(out, a.grad_input + row * a.n);
  }
  if (!a.partial && !a.whole) return;

  extern __shared__ __align__(16) unsigned char shared[];
  A* const result = a.partial + blockIdx.x * S * a.n;
  A* const own = teams == 1 ? result : reinterpret_cast<A*>(shared) + static_cast<int64_t>(which) * S * n;
#pragma unroll
  for (int g = 0; g < Words; ++g) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      if (!part.has(g, k + 1)) continue;
      const int at = part.at + g * Step * W + k;
      if (a.whole && teams == 1) {
        store_parameter_grad<1>(a, 0, at, {weight_sum[g][k]});
        if constexpr (N == Norm::layer) store_parameter_grad<1>(a, 1, at, {bias_sum[g][k]});
        continue;
      }
      own[at] = weight_sum[g][k];
      if constexpr (N == Norm::layer) own[n + at] = bias_sum[g][k];
    }
  }
  if (teams == 1) return;
  __syncthreads();
  add_parts(a, reinterpret_cast<const A*>(shared), teams, static_cast<int64_t>(S) * n, result);
}

// ---- host ------------------------------------------------------------------------------------------------------------

}  // namespace

int norm_backward_ragged(const NormBackward& args, const Plan& plan, cudaStream_t stream) {
  const int words = static_cast<int>(plan::units_of(row_of(args), plan.order.access));
  return with_form<BackwardTable, BackwardTable::Kernel::words, plan::Access::word>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      return dispatch_bool(args.grad_sum != nullptr, [&](auto grad_sum) -> int {
        constexpr Norm N = decltype(norm)::value;
        using T = typename decltype(t)::type;
        using P = typename decltype(p)::type;
        if constexpr (Form::is_for(kProblem<N, T, P>)) {
          constexpr int Words = Form::rule.team.each;
          constexpr int Lanes = Form::rule.team.team == plan::Team::lanes ? Form::rule.team.threads : 0;
          // A row of one warp has more than four words a lane, of several at least half of what they could.
          constexpr int Checked = Lanes ? Words : Words - std::min(4, Words / 2);
          const int warps = Lanes ? 1 : plan.order.threads / kWarp;
          return launch_kernel(
              &backward_ragged_kernel<N, T, P, Words, Checked, Lanes, decltype(grad_sum)::value>,
              launch_config(static_cast<unsigned>(args.chunks), plan.threads, stream, parts_bytes(args, plan.teams)),
              Backward<T, P>(args), warps, words / warps, words % warps);
        }
        return cudaErrorInvalidValue;
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
