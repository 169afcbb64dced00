#pragma once
// How the sums of a row come together: over the lanes of a warp, the parts of a row, the warps of a team, the blocks of a
// cluster. A Sum is a monoid: op.zero(), and op.merge(a, b), which gives the same bits as op.merge(b, a).
#include <type_traits>

#include "device/bulk.cuh"
#include "plan/row.h"

namespace fastops::FASTOPS_ARCH {

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

// Over the warps of a team, each with the sum of its lanes; every thread has the result.
template <class Op, class Sum>
__device__ inline Sum merge_warps(const Op& op, const Sum& sum, int warps) {
  __shared__ Sum of_warp[kRowWarps];
  const int warp = threadIdx.x % kRowWarps;  // a lane's
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  return merge_lanes(op, warp < warps ? of_warp[warp] : op.zero(), kRowWarps);
}

// Over the warps of a cluster's blocks: over the shares of a row and then over warps, as where one block has all shares.
template <class Sum>
struct ClusterSums {
  Sum of[plan::row::kMostShares][kRowWarps];
  device::Barrier told;
};
template <>
struct ClusterSums<void> {};
template <class Sum>
constexpr bool kIsMessage = sizeof(Sum) == 4 || sizeof(Sum) == 8 || sizeof(Sum) == 16;

template <class Sum>
__device__ inline void begin_cluster(ClusterSums<Sum>& sums) {
#if __CUDA_ARCH__ >= 900
  if constexpr (!std::is_void_v<Sum>) {
    if (threadIdx.x == 0) {
      device::barrier_init(&sums.told);
      device::barrier_init_fence();
    }
    device::cluster_arrive_relaxed();
  }
#endif
}
// Every warp tells every block of its sum of a share; `first`: it has told of none.
template <class Sum>
__device__ inline void tell_cluster(const Sum& sum, ClusterSums<Sum>& sums, int share, int blocks, bool first) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kIsMessage<Sum>) {
    const int lane = threadIdx.x % 32;
    if (first) device::cluster_wait();
    if (lane < blocks) device::send(&sums.of[share][threadIdx.x / 32], &sums.told, lane, sum);
  }
#endif
}
// Each block has its messages before it goes on, and so no other writes to it when it ends.
template <class Op, class Sum>
__device__ inline Sum merge_cluster(const Op& op, ClusterSums<Sum>& sums, int shares, int warps) {
  Sum all = op.zero();
#if __CUDA_ARCH__ >= 900
  if constexpr (kIsMessage<Sum>) {
    const int warp = threadIdx.x % kRowWarps;  // a lane's
    if (threadIdx.x == 0) device::barrier_expect(&sums.told, shares * warps * sizeof(Sum));
    device::barrier_wait_cluster(&sums.told, 0);
    if (warp < warps) {
      all = sums.of[0][warp];
      for (int share = 1; share < shares; ++share) all = op.merge(all, sums.of[share][warp]);
    }
  }
#endif
  return merge_lanes(op, all, kRowWarps);
}

}  // namespace fastops::FASTOPS_ARCH
