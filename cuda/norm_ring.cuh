#pragma once
// Kernels for long rows on cards with thread-block clusters: blocks that stay, a ring of rows on their way into shared
// memory by bulk copies, and a row divided among the blocks of a cluster where it is too long for one.
#include <atomic>
#include <cstdint>

#include "device/bulk.cuh"
#include "launch/cluster.cuh"
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

using plan::kMostBlocksOfRow;
using plan::kMostStages;
static_assert(kMostBlocksOfRow <= kWarp);  // a lane sends to each

// The last answer of a device, beside its question: one number, so that threads see both or neither.
class LastAnswer {
 public:
  // ask(): 0 for an answer to ask for again.
  template <class F>
  int64_t get(const ClusterShape& shape, F ask) {
    int device = 0;
    cudaGetDevice(&device);
    if (device >= PerDevice::kDevices) return ask();
    static_assert(kMostBlocksOfRow < 1 << 8, "the question's bits");
    const uint64_t question = static_cast<uint64_t>(shape.threads) << 50 | static_cast<uint64_t>(shape.bytes) << 32 |
                              static_cast<uint64_t>(shape.blocks) << 24;
    const uint64_t known = answers_[device].load(std::memory_order_relaxed);
    if (known >> 24 == question >> 24 && (known & 0xffffff) != 0) return static_cast<int64_t>(known & 0xffffff);
    const int64_t answer = ask();
    const bool fits = shape.bytes < 1 << 18 && answer > 0 && answer < 1 << 24;
    if (fits) answers_[device].store(question | static_cast<uint64_t>(answer), std::memory_order_relaxed);
    return answer;
  }

 private:
  std::atomic<uint64_t> answers_[PerDevice::kDevices] = {};
};

// How many such clusters the card has at once. At least one: where the driver does not say, the launch will.
template <auto Kernel>
int64_t resident_clusters(const ClusterShape& shape) {
  static LastAnswer known;
  return std::max<int64_t>(1, known.get(shape, [&]() -> int64_t {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = cluster_config(shape, 1, &attribute, nullptr);
    int clusters = 0;
    if (prepare<Kernel>() != cudaSuccess || cudaOccupancyMaxActiveClusters(&clusters, Kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // forget it
      clusters = 0;
    }
    return clusters;
  }));
}

// The sums that `told_by` warps have sent, the same bits for every thread. A lane adds every 32nd.
template <int S, int Most>
__device__ inline Sums<float, S> sum_of_told(const float (&at)[S][Most], int told_by) {
  Sums<float, S> sums = {};
#pragma unroll
  for (int first = 0; first < Most; first += kWarp) {
    const int i = first + threadIdx.x % kWarp;
    if (i >= told_by) break;
#pragma unroll
    for (int k = 0; k < S; ++k) sums.at[k] += at[k][i];
  }
  lane_sum<kWarp>(sums);
  return sums;
}

// A block's part of a row of `all` vectors that `cluster` blocks share.
struct RingPart {
  int rank, most, begin, vectors;  // most: of any block

  __device__ RingPart(int all, int cluster)
      : rank(cluster > 1 ? device::cluster_rank() : 0),
        most((all + cluster - 1) / cluster),
        begin(rank * most),
        vectors(min(most, all - begin)) {}
};

// Makes the barriers; a phase of `arrived` takes so many arrivals. Thread 0 may use its block's at once, and without a cluster
// the others too; a cluster's blocks may use each other's, and their own, after ring_meet().
template <unsigned Arrivals = 1, int Turns>
__device__ inline void ring_begin(device::Barrier* arrived, int count, device::Barrier (&told)[Turns], int cluster) {
  if (threadIdx.x == 0) {
    for (int k = 0; k < count; ++k) device::barrier_init<Arrivals>(&arrived[k]);
    for (int k = 0; k < Turns; ++k) device::barrier_init(&told[k]);
    device::barrier_init_fence();
  }
  if (cluster > 1)
    device::cluster_arrive_relaxed();
  else
    __syncthreads();
}
__device__ inline void ring_meet(int cluster) {
  if (cluster > 1) device::cluster_wait();
}

}  // namespace fastops::FASTOPS_ARCH
