#pragma once
// How the sums of a row come together: over the lanes of a warp, the parts of a row, the warps of a team, the blocks of
// a cluster. A Sum is a monoid: op.zero(), and op.merge(a, b), which gives the same bits as op.merge(b, a).
#include "device/bulk.cuh"
#include "plan/row.h"

namespace fastops::FASTOPS_ARCH {

// How often a row may be summed: twice about a center.
template <class Op>
constexpr int kRounds = Op::kCenter ? 2 : 1;

constexpr int kRowWarps = plan::row::kMostThreads / 32;  // of a team, at most
static_assert(kRowWarps == 16, "merge_lanes() takes a power of two");

template <class Sum>
__device__ inline Sum shuffle_xor(const Sum& sum, int lane) {
  static_assert(sizeof(Sum) % 4 == 0);
  Sum other;
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(Sum) / 4); ++k)
    reinterpret_cast<unsigned*>(&other)[k] = __shfl_xor_sync(~0u, reinterpret_cast<const unsigned*>(&sum)[k], lane);
  return other;
}

// Over `lanes` neighbouring lanes, a power of two; each has the result.
template <class Op, class Sum>
__device__ inline Sum merge_lanes(const Op& op, Sum sum, int lanes) {
  if constexpr (Op::kPeak) {  // one power a lane, where merge() would take one at each step
    auto peak = op.peak(sum);
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
      if (lane < lanes) peak = fmax(peak, __shfl_xor_sync(~0u, peak, lane));
    sum = op.raised(sum, peak);
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
      if (lane < lanes) sum = op.add(sum, shuffle_xor(sum, lane));
    return sum;
  } else {
#pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
      if (lane < lanes) sum = op.merge(sum, shuffle_xor(sum, lane));
    return sum;
  }
}

// Merges the sums of a team's warps; every thread has the result. Sums of another round have other shared memory.
template <int kMostWarps, class Op, class Sum>
__device__ inline Sum merge_warps(const Op& op, const Sum& sum, int round, int warps) {
  __shared__ Sum of_warp[kRounds<Op>][kRowWarps];
  const int warp = threadIdx.x % kMostWarps, first = threadIdx.y * warps;  // a lane's; the team's
  if (threadIdx.x % 32 == 0) of_warp[round][first + threadIdx.x / 32] = sum;
  __syncthreads();
  return merge_lanes(op, warp < warps ? of_warp[round][first + warp] : op.zero(), kMostWarps);
}

// Sums sent by the warps of a cluster's blocks: they are merged over the shares of a row and then over warps, as where
// one block has all shares. Each round has a barrier, because a block may send its sums of the second round before
// another one has all of the first.
template <class Sum, int kRounds>
struct ClusterSums {
  Sum of[kRounds][plan::row::kMostShares][kRowWarps];
  device::Barrier arrived[kRounds];
};
template <class Sum, int kRounds>
__device__ inline void begin_cluster(ClusterSums<Sum, kRounds>& sums) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) device::barrier_init(&sums.arrived[round]);
    device::barrier_init_fence();
  }
  device::cluster_arrive_relaxed();
#endif
}
// Sends a warp's sum of a share to every block. `first`: the warp has sent none.
template <class Sum, int kRounds>
__device__ inline void send_to_cluster(const Sum& sum, ClusterSums<Sum, kRounds>& sums, int round, int share,
                                       int blocks, bool first) {
#if __CUDA_ARCH__ >= 900
  const int lane = threadIdx.x % 32;
  if (first) device::cluster_wait();
  if (lane < blocks) device::send(&sums.of[round][share][threadIdx.x / 32], &sums.arrived[round], lane, sum);
#endif
}
// Merges all sums of a round. Returns when all messages to this block have arrived, so that no block writes to the shared
// memory of one that has ended.
template <class Op, class Sum, int kRounds>
__device__ inline Sum merge_cluster(const Op& op, ClusterSums<Sum, kRounds>& sums, int round, int shares, int warps) {
  Sum all = op.zero();
#if __CUDA_ARCH__ >= 900
  const int warp = threadIdx.x % kRowWarps;  // a lane's
  if (threadIdx.x == 0) device::barrier_expect(&sums.arrived[round], shares * warps * sizeof(Sum));
  device::barrier_wait_cluster(&sums.arrived[round], 0);
  if (warp < warps) {
    all = sums.of[round][0][warp];
    for (int share = 1; share < shares; ++share) all = op.merge(all, sums.of[round][share][warp]);
  }
#endif
  return merge_lanes(op, all, kRowWarps);
}

}  // namespace fastops::FASTOPS_ARCH
