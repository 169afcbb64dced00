#pragma once
// Helpers of kernels that read the next rows into a ring of stages in shared memory: how many clusters a card runs at once,
// the exchange of sums in a cluster, a block's part of a row, barriers.
#include <atomic>
#include <cstdint>

#include "device/bulk.cuh"
#include "engine/row/team_sum.cuh"
#include "launch/cluster.cuh"
#include "plan/rule.h"

namespace fastops::FASTOPS_ARCH {

using plan::kMostBlocksOfRow;
using plan::kMostStages;
static_assert(kMostBlocksOfRow <= kWarp);  // lane b sends its warp's sums to block b

// The last occupancy query of each device. Key and result are one number, so that other threads read both or neither.
class OccupancyCache {
 public:
  // Returns the stored result, or calls ask(). A result of 0 is not stored.
  template <class F>
  int64_t get(const ClusterShape& shape, F ask) {
    int device = 0;
    cudaGetDevice(&device);
    if (device >= PerDevice::kDevices) return ask();
    static_assert(kMostBlocksOfRow < 1 << 8, "the key's bits");
    const uint64_t key = static_cast<uint64_t>(shape.threads) << 50 | static_cast<uint64_t>(shape.bytes) << 32 |
                         static_cast<uint64_t>(shape.blocks) << 24;
    const uint64_t known = results_[device].load(std::memory_order_relaxed);
    if (known >> 24 == key >> 24 && (known & 0xffffff) != 0) return static_cast<int64_t>(known & 0xffffff);
    const int64_t clusters = ask();
    const bool fits = shape.bytes < 1 << 18 && clusters > 0 && clusters < 1 << 24;
    if (fits) results_[device].store(key | static_cast<uint64_t>(clusters), std::memory_order_relaxed);
    return clusters;
  }

 private:
  std::atomic<uint64_t> results_[PerDevice::kDevices] = {};
};

// Returns how many clusters of this shape the card runs at once; at least 1, also after an error of the driver, which the launch
// reports again.
template <auto Kernel>
int64_t resident_clusters(const ClusterShape& shape) {
  static OccupancyCache known;
  return std::max<int64_t>(1, known.get(shape, [&]() -> int64_t {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = cluster_config(shape, 1, &attribute, nullptr);
    int clusters = 0;
    if (prepare<Kernel>() != cudaSuccess || cudaOccupancyMaxActiveClusters(&clusters, Kernel, &config) != cudaSuccess) {
      cudaGetLastError();  // clears the error, so that no later check reports it
      clusters = 0;
    }
    return clusters;
  }));
}

// Adds the sums that `senders` warps have sent. Every thread gets the same bits: a lane adds every 32nd sum, then the lanes
// are added.
template <int S, int Most>
__device__ inline Sums<float, S> sum_received(const float (&at)[S][Most], int senders) {
  Sums<float, S> sums = {};
#pragma unroll
  for (int first = 0; first < Most; first += kWarp) {
    const int i = first + threadIdx.x % kWarp;
    if (i >= senders) break;
#pragma unroll
    for (int k = 0; k < S; ++k) sums.at[k] += at[k][i];
  }
  lane_sum<kWarp>(sums);
  return sums;
}

// A block's part of a row of `all` vectors, which `cluster` blocks share.
struct RingPart {
  int rank, most, begin, vectors;  // most: vectors of the largest part

  __device__ RingPart(int all, int cluster)
      : rank(cluster > 1 ? device::cluster_rank() : 0),
        most((all + cluster - 1) / cluster),
        begin(rank * most),
        vectors(min(most, all - begin)) {}
};

// Initializes the barriers. A phase of `arrived` ends after kArrivals arrivals. Without a cluster all threads may use them at
// once. Of a cluster's block thread 0 may use the block's own barriers, until every thread has called ring_wait_for_cluster().
template <unsigned kArrivals = 1, int kTurns>
__device__ inline void ring_init_barriers(device::Barrier* arrived, int count, device::Barrier (&sent)[kTurns],
                                          int cluster) {
  if (threadIdx.x == 0) {
    for (int k = 0; k < count; ++k) device::barrier_init<kArrivals>(&arrived[k]);
    for (int k = 0; k < kTurns; ++k) device::barrier_init(&sent[k]);
    device::barrier_init_fence();
  }
  if (cluster > 1)
    device::cluster_arrive_relaxed();
  else
    __syncthreads();
}
__device__ inline void ring_wait_for_cluster(int cluster) {
  if (cluster > 1) device::cluster_wait();
}

}  // namespace fastops::FASTOPS_ARCH
