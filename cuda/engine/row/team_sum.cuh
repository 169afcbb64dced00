#pragma once
// Sums over the threads of a team: lanes of a warp, or whole warps of a block.

namespace fastops::FASTOPS_ARCH {

constexpr int kWarp = 32;

template <class A, int N>
struct Sums {
  A at[N];
};

// Adds the sums of kLanes neighbouring lanes. Every lane gets the same bits. All 32 lanes must call this.
template <int kLanes, class A, int N>
__device__ inline void lane_sum(Sums<A, N>& sums) {
#pragma unroll
  for (int mask = kLanes / 2; mask > 0; mask /= 2)
#pragma unroll
    for (int k = 0; k < N; ++k) sums.at[k] += __shfl_xor_sync(0xffffffffu, sums.at[k], mask);
}

// Up to kWarpsInTurn warps: each thread adds the warps' sums one after another. More: each lane loads one warp's sums, and the
// lanes of each warp add them.
constexpr int kWarpsInTurn = 4;

template <class A, int N>
struct Scratch {
  Sums<A, N> warp[kWarp];
};

// Adds the sums of a team of whole warps. Every thread gets the same bits. Two calls in a row need two scratches; the third
// call may use the first scratch again. `barrier` waits for the team's threads.
template <class A, int N, class Barrier>
__device__ inline void team_sum(Sums<A, N>& sums, int warps, int warp, Scratch<A, N>& scratch, Barrier barrier) {
  lane_sum<kWarp>(sums);
  if (warps == 1) return;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) scratch.warp[warp] = sums;
  barrier();
  static_assert(kWarpsInTurn == 4);
  if (warps <= kWarpsInTurn) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums.at[k] = scratch.warp[0].at[k] + scratch.warp[1].at[k];
      if (warps > 2) sums.at[k] += scratch.warp[2].at[k];
      if (warps > 3) sums.at[k] += scratch.warp[3].at[k];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) sums.at[k] = lane < warps ? scratch.warp[lane].at[k] : A(0);
  lane_sum<kWarp>(sums);
}

// Waits for the threads of one of a block's teams, at most 15. Named barrier 0 is that of __syncthreads().
struct TeamBarrier {
  int team, threads;
  __device__ void operator()() const { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "r"(threads) : "memory"); }
};

}  // namespace fastops::FASTOPS_ARCH
