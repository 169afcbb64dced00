// result[j] = sum over chunks of partial[chunk][j], in a fixed order
#include "kernels/columns.h"

#include <iterator>

#include "dependent.cuh"
#include "device/vector.cuh"
#include "plan/column_sum.h"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kThreads = 256;
// Chunks that a thread asks for before it adds one: all that it has of a block, or two, of each of 132 multiprocessors.
constexpr int kAtOnce = 5;

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

// A block sums kThreads / Parts groups of W columns, each by Parts threads over every Parts-th chunk; blockIdx.y is the sum.
template <class A, int W, int Parts>
__global__ void __launch_bounds__(kThreads) column_sum_kernel(const __grid_constant__ Sums sums) {
  constexpr int kGroups = kThreads / Parts;
  __shared__ device::Vector<A, W> parts[Parts][kGroups];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const ColumnSum& s = sums.at[blockIdx.y];
  const int group = threadIdx.x % kGroups, part = threadIdx.x / kGroups;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kGroups * W, j = first + group * W;
  A total[W] = {};
  if (j < s.n) {
    const A* column = static_cast<const A*>(s.partial) + j;
    for (int64_t chunk = part; chunk < s.chunks; chunk += kAtOnce * Parts) {
      device::Vector<A, W> v[kAtOnce] = {};
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        if (chunk + k * Parts < s.chunks)
          v[k] = *reinterpret_cast<const device::Vector<A, W>*>(column + (chunk + k * Parts) * s.stride);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
        for (int i = 0; i < W; ++i) total[i] += v[k].at[i];
    }
  }
#pragma unroll
  for (int k = 0; k < W; ++k) parts[part][group].at[k] = total[k];
  __syncthreads();
  for (int column = threadIdx.x; column < kGroups * W; column += kThreads) {
    if (first + column >= s.n) return;
    A sum = 0;
    for (int k = 0; k < Parts; ++k) sum += parts[k][column / W].at[column % W];
    store_as(s.dtype, s.result, first + column, sum);
  }
}

template <class A, int W>
int launch(const Sums& sums, int count, cudaStream_t stream) {
  const int64_t groups = ceil_div(sums.at[0].n, W), chunks = sums.at[0].chunks;
  auto with = [&](auto parts) -> int {
    constexpr int kParts = decltype(parts)::value;
    const dim3 blocks(static_cast<unsigned>(ceil_div(groups, kThreads / kParts)), count);
    return launch_kernel(&column_sum_kernel<A, W, kParts>, launch_config(blocks, kThreads, stream), sums);
  };
  constexpr auto& rules = plan::column_sum::kRules;
  static_assert(std::size(rules) == 3);
  switch (plan::column_sum::plan(chunks)) {
    case 0: return with(std::integral_constant<int, rules[0].threads>{});
    case 1: return with(std::integral_constant<int, rules[1].threads>{});
    default: return with(std::integral_constant<int, rules[2].threads>{});
  }
}

}  // namespace

int column_sum(const ColumnSum* sums, int count, void* stream_handle) {
  auto stream = static_cast<cudaStream_t>(stream_handle);
  Sums args;
  bool aligned = true;
  for (int k = 0; k < count; ++k) {
    args.at[k] = sums[k];
    aligned &= aligned16(sums[k].partial) && sums[k].stride % 4 == 0 && sums[k].n % 4 == 0;
  }
  if (sums[0].accumulate == DType::f64) return launch<double, 1>(args, count, stream);
  return aligned ? launch<float, 4>(args, count, stream) : launch<float, 1>(args, count, stream);
}

}  // namespace fastops::FASTOPS_ARCH
