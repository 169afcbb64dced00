// The sum of all rows' losses, or their mean, by one block in a fixed order: each thread adds every kThreads-th row in f64, then
// the threads' sums are added as a tree.
#include "dependent.cuh"
#include "device/types.cuh"
#include "problem/cross_entropy.h"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreads = 1024;
constexpr int kAtOnce = 8;  // rows that a thread asks for before it adds one

template <class A>
__device__ double sum_of_thread(const RowNumbers& numbers, int64_t rows) {
  const A* data = static_cast<const A*>(numbers.data);
  double sum = 0;
  for (int64_t first = threadIdx.x; first < rows; first += kAtOnce * kThreads) {
    A x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t row = first + k * kThreads;
      x[k] = row < rows ? data[row * numbers.stride] : A(0);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) sum += x[k];
  }
  return sum;
}

// In every thread of the first warp.
__device__ double sum_of_block(double sum, double* room) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) room[warp] = sum;
  __syncthreads();
  if (warp > 0) return 0;
  sum = room[lane];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// Through the type that is computed in, whose precision the sum has.
template <class A>
__device__ void store_as(DType dtype, void* result, double value) {
  const A x = static_cast<A>(value);
  switch (dtype) {
    case DType::f16: *static_cast<device::f16*>(result) = device::narrow<device::f16>(static_cast<float>(x)); break;
    case DType::bf16: *static_cast<device::bf16*>(result) = device::narrow<device::bf16>(static_cast<float>(x)); break;
    case DType::f32: *static_cast<float*>(result) = static_cast<float>(x); break;
    case DType::f64: *static_cast<double*>(result) = value; break;
  }
}

// A is the losses' and the weights' type.
template <class A>
__global__ void __launch_bounds__(kThreads) row_total_kernel(const __grid_constant__ RowTotal a) {
  static_assert(kThreads == 32 * 32);
  __shared__ double room[2][32];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  double loss = sum_of_block(sum_of_thread<A>(a.losses, a.rows), room[0]);
  if (a.total) {  // of no rows there is no weight
    const double weight = sum_of_block(sum_of_thread<A>(a.weights, a.rows), room[1]);
    loss /= weight;
    if (threadIdx.x == 0) *static_cast<A*>(a.total) = static_cast<A>(weight);
  }
  if (threadIdx.x == 0) store_as<A>(a.result_dtype, a.result, loss);
}

}  // namespace

int row_total(const RowTotal& a, void* stream) {
  const auto config = launch_config(1, kThreads, static_cast<cudaStream_t>(stream));
  return a.losses.dtype == DType::f64 ? launch_kernel(&row_total_kernel<double>, config, a)
                                      : launch_kernel(&row_total_kernel<float>, config, a);
}

}  // namespace fastops::FASTOPS_ARCH
