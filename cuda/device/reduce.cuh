#pragma once
// Sums over a warp or a block: every thread gets the same bits, in an order that depends on the block's size alone.

namespace fastops {
namespace device {

template <class A, int N>
__device__ inline void warp_sum(A (&x)[N]) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2)
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] += __shfl_xor_sync(0xffffffffu, x[k], lane);
}

// `scratch` holds N values for each of up to 32 warps. Two sums in a row need two scratches, else a fast warp would
// overwrite what a slow one still reads; a third may take the first one again.
template <class A, int N>
__device__ inline void block_sum(A (&x)[N], A* scratch) {
  warp_sum(x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  if (lane == 0)
#pragma unroll
    for (int k = 0; k < N; ++k) scratch[k * 32 + warp] = x[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = lane < warps ? scratch[k * 32 + lane] : A(0);
  warp_sum(x);
}

}  // namespace device
}  // namespace fastops
