#pragma once
// Kernels for long rows on cards with thread-block clusters: blocks that stay, a ring of rows on their way into shared
// memory by bulk copies, and a row divided among the blocks of a cluster where it is too long for one.
#include <atomic>
#include <cstdint>
#include <optional>

#include "dependent.cuh"
#include "device/bulk.cuh"
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

struct SumOrder;  // norm_backward.cuh

// Whether the current device has them, and they are made for this problem.
bool ring_takes(const NormForward& a);
bool ring_takes(const NormBackward& a);

int norm_forward_ring(const NormForward& a, void* stream);
int norm_backward_ring(const NormBackward& a, void* stream);
int64_t norm_backward_ring_chunks(const NormBackward& a);
std::optional<SumOrder> ring_order(const NormBackward& a);  // none where a cluster shares a row

// Of the backwards that ring_takes(): whether they are for norm_backward_wide.cu, to which the two above pass them on.
bool wide_takes(const NormBackward& a);
int norm_backward_wide(const NormBackward& a, void* stream);
int64_t norm_backward_wide_chunks(const NormBackward& a);

constexpr int kMostStages = 3;  // more were slower
constexpr int kMostBlocksOfRow = 16;
static_assert(kMostBlocksOfRow <= kWarp);  // a lane sends to each

// A block's shared memory for the ring, beside what the kernels declare.
inline int ring_bytes() { return std::max(0, device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() - 9 * 1024); }

// The shape of a launch: `cluster` blocks a row; a block has stages of `stage_bytes`, and `more_bytes`.
struct RingPlan {
  int threads, cluster, stages;
  unsigned shared_bytes;
};

inline RingPlan ring_plan(int threads, int cluster, int64_t stage_bytes, int64_t more_bytes = 0,
                          int most_stages = kMostStages) {
  const int stages = static_cast<int>(std::clamp<int64_t>((ring_bytes() - more_bytes) / stage_bytes, 0, most_stages));
  return {threads, cluster, stages, static_cast<unsigned>(stages * stage_bytes + more_bytes)};
}

template <class Kernel>
int allow(Kernel* kernel, const RingPlan& plan) {
  int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, ring_bytes());
  if (error == cudaSuccess && plan.cluster > 8)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  return error;
}

inline cudaLaunchConfig_t ring_config(const RingPlan& plan, int64_t clusters, cudaLaunchAttribute* cluster_shape,
                                      void* stream) {
  const dim3 blocks(static_cast<unsigned>(clusters * plan.cluster)), threads(static_cast<unsigned>(plan.threads));
  cudaLaunchConfig_t config = launch_config(blocks, threads, static_cast<cudaStream_t>(stream), plan.shared_bytes);
  cluster_shape->id = cudaLaunchAttributeClusterDimension;
  cluster_shape->val.clusterDim.x = static_cast<unsigned>(plan.cluster);
  cluster_shape->val.clusterDim.y = cluster_shape->val.clusterDim.z = 1;
  config.attrs = cluster_shape;
  config.numAttrs = 1;
  return config;
}

// The last answer of a device, beside its question: one number, so that threads see both or neither.
class LastAnswer {
 public:
  template <class F>
  int64_t get(const RingPlan& plan, F ask) {
    int device = 0;
    cudaGetDevice(&device);
    if (device >= kDevices) return ask();
    const uint64_t question = static_cast<uint64_t>(plan.threads) << 50 | uint64_t{plan.shared_bytes} << 32 |
                              static_cast<uint64_t>(plan.cluster) << 24;
    const uint64_t known = answers_[device].load(std::memory_order_relaxed);
    if (known >> 24 == question >> 24) return static_cast<int64_t>(known & 0xffffff) - 1;
    const int64_t answer = ask();
    answers_[device].store(question | static_cast<uint64_t>(answer + 1), std::memory_order_relaxed);
    return answer;
  }

 private:
  static constexpr int kDevices = 64;
  std::atomic<uint64_t> answers_[kDevices] = {};
};

// Allows the kernel what the plan needs. How many such clusters the card holds at once; 0: it cannot.
template <class Kernel>
int64_t ask_clusters(Kernel* kernel, const RingPlan& plan) {
  cudaLaunchAttribute shape;
  const cudaLaunchConfig_t config = ring_config(plan, 1, &shape, nullptr);
  int clusters = 0;
  if (allow(kernel, plan) == cudaSuccess && cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess)
    return clusters;
  cudaGetLastError();  // forget it
  return 0;
}
template <class Kernel>
int64_t most_clusters(Kernel* kernel, const RingPlan& plan, LastAnswer& known) {
  return known.get(plan, [&] { return ask_clusters(kernel, plan); });
}

template <class Kernel, class Args, class... More>
int launch_ring(Kernel* kernel, const RingPlan& plan, int64_t clusters, const Args& args, void* stream, More... more) {
  cudaLaunchAttribute shape;
  return launch_kernel(kernel, ring_config(plan, clusters, &shape, stream), args, plan.cluster, plan.stages, more...);
}

// Smallest power of two that is at least `blocks`.
inline int cluster_of(int64_t blocks) {
  int cluster = 1;
  while (cluster < blocks) cluster *= 2;
  return cluster;
}

// f(norm, tag<T>, tag<P>, bool_constant, the kernel's last answer); the ring has no f64.
template <class Problem, class F>
int64_t dispatch_ring(const Problem& a, bool flag, F f) {
  int64_t result = 0;
  dispatch_problem(a, [&](auto norm, auto t, auto p) -> int {
    if constexpr (sizeof(typename decltype(t)::type) < 8)
      dispatch_bool(flag, [&](auto known) -> int {
        static LastAnswer answer;
        result = f(norm, t, p, known, answer);
        return 0;
      });
    return 0;
  });
  return result;
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
