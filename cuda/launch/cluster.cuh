#pragma once
// Launches of thread-block clusters.
#include "card.cuh"
#include "dependent.cuh"
#include "plan/rule.h"

namespace fastops::FASTOPS_ARCH {

// A launch whose rows have a cluster each.
struct ClusterShape {
  int threads, blocks;  // of a block, of a cluster
  int64_t bytes;        // of shared memory, a block's
};

inline cudaLaunchConfig_t cluster_config(const ClusterShape& shape, int64_t clusters, cudaLaunchAttribute* attribute,
                                         cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(clusters * shape.blocks)), threads(static_cast<unsigned>(shape.threads));
  cudaLaunchConfig_t config = launch_config(blocks, threads, stream, static_cast<size_t>(shape.bytes));
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = static_cast<unsigned>(shape.blocks);
  attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = 1;
  return config;
}

inline int allow(const void* kernel) {
  const int bytes = static_cast<int>(plan::ring_bytes(card()));
  const int status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  return status != cudaSuccess ? status
                               : cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
}

// Once a device: the kernel may have all the shared memory that a plan gives, and clusters of more than eight blocks. A failure
// is not kept: memory may be there the next time.
template <auto Kernel>
int prepare() {
  static PerDevice done;
  const auto try_it = [](int) -> int {
    return allow(reinterpret_cast<const void*>(Kernel)) == cudaSuccess ? 1 : PerDevice::kUnknown;
  };
  return done.get(try_it) == 1 ? cudaSuccess : allow(reinterpret_cast<const void*>(Kernel));
}

template <auto Kernel, class... Args>
int launch_clusters(const ClusterShape& shape, int64_t clusters, cudaStream_t stream, const Args&... args) {
  if (const int status = prepare<Kernel>()) return status;
  cudaLaunchAttribute attribute;
  return launch_kernel(Kernel, cluster_config(shape, clusters, &attribute, stream), args...);
}

}  // namespace fastops::FASTOPS_ARCH
