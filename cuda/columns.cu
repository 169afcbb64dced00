// result[j] = sum over chunks of partial[chunk][j], in a fixed order
#include "kernels/columns.h"

#include "device/vector.cuh"
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kColumns = 32, kParts = 8, kThreads = kColumns * kParts;

struct Sums {
  ColumnSum at[2];
};

template <class A>
__device__ void store_as(DType dtype, void* result, int64_t j, A value) {
  switch (dtype) {
    case DType::f16: static_cast<device::f16*>(result)[j] = device::narrow<device::f16>(float(value)); break;
    case DType::bf16: static_cast<device::bf16*>(result)[j] = device::narrow<device::bf16>(float(value)); break;
    case DType::f32: static_cast<float*>(result)[j] = float(value); break;
    case DType::f64: static_cast<double*>(result)[j] = value; break;
  }
}

// A block sums 32 columns, each by 8 threads over every eighth chunk; blockIdx.y is the sum.
template <class A>
__global__ void __launch_bounds__(kThreads) column_sum_kernel(const __grid_constant__ Sums sums) {
  __shared__ A parts[kParts][kColumns];
  const ColumnSum& s = sums.at[blockIdx.y];
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  A total = 0;
  if (j < s.n)
    for (int64_t chunk = threadIdx.y; chunk < s.chunks; chunk += kParts)
      total += static_cast<const A*>(s.partial)[chunk * s.stride + j];
  parts[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || j >= s.n) return;
  for (int part = 1; part < kParts; ++part) total += parts[part][threadIdx.x];
  store_as(s.dtype, s.result, j, total);
}

}  // namespace

int column_sum(const ColumnSum* sums, int count, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  Sums args;
  for (int k = 0; k < count; ++k) args.at[k] = sums[k];
  const dim3 blocks(static_cast<unsigned>(ceil_div(sums[0].n, kColumns)), count), threads(kColumns, kParts);
  if (sums[0].accumulate == DType::f64)
    column_sum_kernel<double><<<blocks, threads, 0, stream>>>(args);
  else
    column_sum_kernel<float><<<blocks, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace fastops::FASTOPS_ARCH
