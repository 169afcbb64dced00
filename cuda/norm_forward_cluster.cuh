#pragma once
// Of the forward over rows that the blocks of a cluster share: what their warps tell each other.
#include "norm_forward.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {

// What the blocks of a multiprocessor have of its shared memory: cards that lack the room would have a block or two.
constexpr int kSharedBytes = 192 * 1024;

// The most vectors of a row in one of a cluster's blocks. Parts begin at multiples of 128 bytes: others took up to 1.4 times as
// long.
inline int part_of_block(const NormForward& a, const Plan& plan) {
  const int64_t part = ceil_div(plan::units_of(row_of(a), plan.order.access), plan.order.blocks);
  return static_cast<int>(ceil_div(part, 8) * 8);
}

// What a warp tells about its part of a row.
template <Norm N>
using Told = std::conditional_t<N == Norm::layer, Moments<float>, float>;

// From `vectors` in its block, `count` elements of the warp's; each_vector() as in warp_moments().
template <Norm N, int W, class T, class P, class EachVector>
__device__ inline Told<N> told_by_warp(const Forward<T, P>& a, int vectors, float count, float inverse_count,
                                       EachVector each_vector) {
  if constexpr (N == Norm::layer) {
    return warp_moments<W>(a, vectors, count, inverse_count, each_vector);
  } else {
    Sums<float, 1> squares = {};
    each_vector([&](int, int i, float (&d)[W]) {
      const float part = square_sum<W>(d);
      squares.at[0] += i < vectors ? part : 0.0f;
    });
    lane_sum<kWarp>(squares);
    return squares.at[0];
  }
}

// Every warp tells every block of the cluster, and waits until all have.
template <class Told>
__device__ inline void tell_cluster(const Told& own, Told* parts, device::Barrier* told, unsigned parity, int cluster,
                                    int rank, int warps) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (threadIdx.x == 0) device::barrier_expect(told, cluster * warps * sizeof(own));
  if (lane < cluster) device::send(&parts[rank * warps + warp], told, lane, own);
  device::barrier_wait_cluster(told, parity);
}

// The moments of a row from those of its parts; of an rms norm, the squares alone.
template <Norm N, class T, class P>
__device__ inline Moments<float> moments_told(const Forward<T, P>& a, const Told<N>* parts, int count) {
  if constexpr (N == Norm::layer) {
    return merged(parts, count, static_cast<float>(a.n), a.inverse_n);
  } else {
    Sums<float, 1> squares = {};
    for (int k = threadIdx.x % kWarp; k < count; k += kWarp) squares.at[0] += parts[k];
    lane_sum<kWarp>(squares);
    Moments<float> moments = {};
    moments.squares = squares.at[0];
    return moments;
  }
}

}  // namespace fastops::FASTOPS_ARCH
