// The backward of the norms for few rows, in one launch: blocks that have a row each and, beside them, blocks that have
// columns, of which they read all rows once more for the parameters' gradients. How long one thread takes is what counts
// here, so that each has few vectors or words. Their sums are added in the order in which the kernels of many rows add them:
// a row's bits are the same.
#include "dependent.cuh"
#include "norm_backward.cuh"
#include "norm_columns.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreads = kWarp * kMostColumnWarps;  // of a block

// Elements of a word.
template <class T>
constexpr int kWord = sizeof(T) == 2 ? 2 : 1;

// How the kernels of many rows add up a row: each thread of a team its vectors or words in turn, then the lanes, then the
// warps. `each`: words of a row that a warp of it has, the first `more` of them one word more; 0: the team's threads take
// neighbouring vectors or words.
struct SumOrder {
  int lanes, warps, each, more;

  __device__ int begin(int warp) const { return each ? warp * each + min(warp, more) : warp * lanes; }
  __device__ int end(int warp, int units) const { return each ? begin(warp + 1) : units; }
  __device__ int step() const { return each ? lanes : warps * lanes; }
};

// The most units of a thread: of a lane, where one warp has the row, as one warp has it among many; of a block's thread.
constexpr int kOfLane = 2;
template <class T>
constexpr int kMostOfThread = sizeof(T) == 4 ? 4 : 2;  // no more fit the registers of the others
template <class T>
constexpr int kMostUnits = kMostOfThread<T> * kThreads;

// A unit of a row on its way: a vector, or the elements of a word, each by itself. Beyond the row's end it is what lies
// before it: no branch parts the loads.
template <class T, int W, bool Words>
struct Unit {
  std::conditional_t<Words, T[W], Vector<T, W>> held;

  // step: 0 where each unit is the first one
  __device__ void fetch(const T* row, int unit, int n, int step = 1) {
    if constexpr (Words) {
#pragma unroll
      for (int k = 0; k < W; ++k) held[k] = row[min(unit * W + k, n - 1) * step];
    } else {
      held = reinterpret_cast<const Vector<T, W>*>(row)[min(unit, n / W - 1) * step];
    }
  }
  // Zeros in place of all but `count` elements, one at least.
  __device__ void cut(int count) {
    if constexpr (Words) {
#pragma unroll
      for (int k = 1; k < W; ++k) held[k] = k < count ? held[k] : T{};
    }
  }
  __device__ Vector<T, W> packed() const {
    if constexpr (!Words) {
      return held;
    } else {
      Vector<T, W> v;
      if constexpr (W == 2 && sizeof(T) == 2) {
        v.pair[0] = held[0].bits | static_cast<unsigned>(held[1].bits) << 16;
      } else {
#pragma unroll
        for (int k = 0; k < W; ++k) v.at[k] = held[k];
      }
      return v;
    }
  }
};

template <bool Words, int W, class T, class A>
__device__ inline void store_unit(T* row, int unit, int n, const A (&values)[W]) {
  device::store<!Words, W>(row + unit * W, n - unit * W, values);
}

// Of a row, from the units that the lanes of its one warp have: `Lanes` of them add up every Lanes-th one, in turn.
template <int Lanes, int Units, class A, int S>
__device__ inline Sums<A, S> sum_in_warp(const Sums<A, S> (&units)[Units]) {
  Sums<A, S> total = {};
#pragma unroll
  for (int u = 0; u < Units; ++u)
#pragma unroll
    for (int first = 0; first < kWarp; first += Lanes)
#pragma unroll
      for (int k = 0; k < S; ++k)
        total.at[k] +=
            Lanes == kWarp ? units[u].at[k] : __shfl_sync(0xffffffffu, units[u].at[k], first + threadIdx.x % Lanes);
  lane_sum<Lanes>(total);
  return total;
}

// The same where several warps have units, [S][Most]: as many warps as have a row among many add them up, a lane AtOnce at
// a time. So many units are whole warps' there as well.
template <int S, int Most, int AtOnce, class A>
__device__ inline Sums<A, S> sum_in_block(const A* parts, int units, const SumOrder& order, Scratch<A, S>& scratch) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Sums<A, S> sums = {};
  __syncthreads();
  if (warp < order.warps) {
    const int step = order.step(), end = order.end(warp, units);
#pragma unroll 1
    for (int first = order.begin(warp) + lane; first < end; first += AtOnce * step) {
      Sums<A, S> more[AtOnce];
#pragma unroll
      for (int j = 0; j < AtOnce; ++j)
#pragma unroll
        for (int k = 0; k < S; ++k) {
          const int unit = first + j * step;
          const A part = parts[k * Most + min(unit, end - 1)];
          more[j].at[k] = unit < end ? part : A(0);
        }
#pragma unroll
      for (int j = 0; j < AtOnce; ++j)
#pragma unroll
        for (int k = 0; k < S; ++k) sums.at[k] += more[j].at[k];
    }
    lane_sum<kWarp>(sums);
    if (lane == 0) scratch.warp[warp] = sums;
  }
  __syncthreads();
  if (order.warps > kWarpsInTurn) {
#pragma unroll
    for (int k = 0; k < S; ++k) sums.at[k] = lane < order.warps ? scratch.warp[lane].at[k] : A(0);
    lane_sum<kWarp>(sums);
    return sums;
  }
  Sums<A, S> of_warp[kWarpsInTurn];
#pragma unroll
  for (int w = 0; w < kWarpsInTurn; ++w) of_warp[w] = scratch.warp[w];
#pragma unroll
  for (int w = 1; w < kWarpsInTurn; ++w)
#pragma unroll
    for (int k = 0; k < S; ++k)
      if (w < order.warps) of_warp[0].at[k] += of_warp[w].at[k];
  return of_warp[0];
}

// By `team` threads, Units each, or by one warp.
template <Norm N, class T, class P, int W, bool Words, int Units, bool OneWarp>
__device__ inline void take_row(const Backward<T, P>& a, int row, int team, const SumOrder& order,
                                accumulate_t<T>* parts) {
  using A = accumulate_t<T>;
  constexpr int S = kSums<N>;
  __shared__ Scratch<A, S> scratch;
  const int n = static_cast<int>(a.n), units = (n + W - 1) / W;

  const Parameter<P> given = weight_or_one(a.weight);
  Unit<T, W, Words> x[Units], incoming[Units], grad_sum[Units];
  Unit<P, W, Words> weight[Units];
#pragma unroll
  for (int u = 0; u < Units; ++u) {
    const int unit = u * team + threadIdx.x;
    x[u].fetch(a.input + row * a.input_stride, unit, n);
    incoming[u].fetch(a.grad + row * a.grad_stride, unit, n);
    weight[u].fetch(given.at, unit, n, given.step);
    if (a.grad_sum) grad_sum[u].fetch(a.grad_sum + row * a.grad_sum_stride, unit, n);
  }
  const RowNumbers<A> numbers = row_numbers<N>(a, row);

  A h[Units][W], grad[Units][W];
  Sums<A, S> sums[Units] = {};
#pragma unroll
  for (int u = 0; u < Units; ++u) {
    const int unit = u * team + threadIdx.x;
    const bool own = unit < units;  // else it is the last one once more, and goes nowhere
    incoming[u].cut(n - unit * W);
    weight[u].cut(n - unit * W);
    device::widen(x[u].packed(), h[u]);
    device::widen(incoming[u].packed(), grad[u]);
    // Behind the end of a row there is no grad, and at the mean nothing overflows.
    if constexpr (Words && N == Norm::layer) {
#pragma unroll
      for (int k = 1; k < W; ++k) h[u][k] = unit * W + k < n ? h[u][k] : numbers.mean;
    }
    A weight_sum[W] = {}, bias_sum[W] = {};
    first_pass<N, W, A>(h[u], grad[u], true, weight[u].packed(), a.offset, numbers, sums[u], weight_sum, bias_sum);
#pragma unroll
    for (int k = 0; k < S; ++k) {
      if constexpr (OneWarp)
        sums[u].at[k] = own ? sums[u].at[k] : A(0);
      else if (own)
        parts[k * kMostUnits<T> + unit] = sums[u].at[k];
    }
    if (a.whole && own) {
      auto put = [&](int which, const A(&values)[W]) {
        if (!a.parameter_grads[which]) return;
        if (a.wide[which])
          store_unit<Words>(static_cast<A*>(a.parameter_grads[which]), unit, n, values);
        else
          store_unit<Words>(static_cast<T*>(a.parameter_grads[which]), unit, n, values);
      };
      put(0, weight_sum);
      if constexpr (N == Norm::layer) put(1, bias_sum);
    }
  }
  if (!a.grad_input) return;

  Sums<A, S> total;
  if constexpr (OneWarp)
    total = order.lanes == 8    ? sum_in_warp<8>(sums)
            : order.lanes == 16 ? sum_in_warp<16>(sums)
                                : sum_in_warp<kWarp>(sums);
  else
    total = sum_in_block<S, kMostUnits<T>, sizeof(T) == 8 ? 4 : 8>(parts, units, order, scratch);
  divide(total, a.inverse_n);
#pragma unroll
  for (int u = 0; u < Units; ++u) {
    const int unit = u * team + threadIdx.x;
    if (a.grad_sum)
      second_pass<N, W, A>(h[u], grad[u], total, numbers.rstd, grad_sum[u].packed(), h[u]);
    else
      second_pass<N, W, A>(h[u], grad[u], total, numbers.rstd, h[u]);
    if (unit < units) store_unit<Words>(a.grad_input + row * a.n, unit, n, h[u]);
  }
}

// team: the threads that have a row; kWarp, with two units each, or more with 1, 2 or 4.
template <Norm N, class T, class P, int W, bool Words>
__global__ void __launch_bounds__(kThreads)
    backward_few_kernel(const __grid_constant__ Backward<T, P> a, const SumOrder order, int row_blocks, int team) {
  using A = accumulate_t<T>;
  constexpr int kColumns = Words ? 1 : W;  // of a lane; rows of words begin anywhere
  __shared__ union {
    A units[kSums<N> * kMostUnits<T>];
    ColumnParts<N, A, kColumns> columns;
  } parts;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int block = blockIdx.x;
  if (block >= row_blocks)
    return sum_columns<N, kColumns>(a, 0, a.rows, block - row_blocks, gridDim.x - row_blocks, static_cast<A*>(nullptr),
                                    parts.columns);
  if (static_cast<int>(threadIdx.x) >= team) return;
  if (team == kWarp) return take_row<N, T, P, W, Words, kOfLane, true>(a, block, team, order, parts.units);
  if (team * W >= a.n) return take_row<N, T, P, W, Words, 1, false>(a, block, team, order, parts.units);
  if (team * W * 2 >= a.n) return take_row<N, T, P, W, Words, 2, false>(a, block, team, order, parts.units);
  if constexpr (kMostOfThread<T> == 4) take_row<N, T, P, W, Words, 4, false>(a, block, team, order, parts.units);
}

// ---- host ------------------------------------------------------------------------------------------------------------

template <Norm N, class T, class P, int W, bool Words>
int launch(const NormBackward& a, const SumOrder& order, cudaStream_t stream) {
  const bool columns = a.gather == Gather::columns && a.wants_parameters();
  const int row_blocks = a.grad_input || !columns ? static_cast<int>(a.rows) : 0;
  const int64_t column_blocks = columns ? ceil_div(a.n / (Words ? 1 : W), kWarp) : 0;
  const int64_t units = ceil_div(a.n, W), each = units > 2 * kThreads ? 4 : units > kThreads ? 2 : 1;
  const int team = units <= kOfLane * kWarp ? kWarp : static_cast<int>(ceil_div(units, each * kWarp)) * kWarp;
  // As many warps as have all rows under way at once.
  const int of_columns = columns ? static_cast<int>(ceil_div(a.rows, kColumnRows)) * kWarp : 0;
  const auto blocks = static_cast<unsigned>(row_blocks + column_blocks);
  return launch_kernel(&backward_few_kernel<N, T, P, W, Words>,
                       launch_config(blocks, std::max(team, of_columns), stream), Backward<T, P>(a), order, row_blocks,
                       team);
}

// The order in which the kernel of many rows adds up a row: the rule's.
SumOrder order_of(const NormBackward& a, const Plan& plan) {
  const bool lanes = plan.order.team == plan::Team::lanes;
  SumOrder order{lanes ? plan.order.threads : kWarp, lanes ? 1 : plan.order.threads / kWarp, 0, 0};
  if (!lanes && plan.order.access == plan::Access::word) {
    const int words = static_cast<int>(plan::units_of(row_of(a), plan.order.access));
    order.each = words / order.warps;
    order.more = words % order.warps;
  }
  return order;
}

}  // namespace

int norm_backward_single_wave(const NormBackward& a, const Plan& plan, cudaStream_t stream) {
  const SumOrder order = order_of(a, plan);
  return dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    return dispatch_width<T>(a.n, [&](auto width) -> int {
      // Elements of a unit, by those of the widest vector that n allows: where that is one element, words.
      constexpr int kWidth = decltype(width)::value, W = kWidth > 1 ? kWidth : kWord<T>;
      return launch<decltype(norm)::value, T, P, W, kWidth == 1>(a, order, stream);
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
