#pragma once
// How kernels are launched: early, by programmatic dependent launch, where the card has it. Their blocks come onto the card
// while the kernel before them in the stream ends, which hides the launch. PTX ISA, "griddepcontrol". Two rules go with it:
//
// 1. A kernel begins with wait_for_earlier_kernels(), in every thread, before it touches global memory and before any
//    return: what it reads and writes may belong to any kernel before it, and whoever waits for it waits for those too.
// 2. let_next_kernel_start() comes after that. So when the blocks of a kernel begin, all kernels but the one just before it
//    have ended and their writes are visible.
//
// By the second rule a kernel behind one of ours may break the first, if it touches nothing that one writes and writes
// nothing that one touches: it waits before it ends. backward_columns_kernel alone does. `make gates` reads the machine code
// for both (tools/gates/waits.py).
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {

// Where a launch comes in its stream, which may be captured into a CUDA graph.
class Placement {
 public:
  explicit Placement(cudaStream_t stream);

  // Whether the launch is to be early. In a graph that pays behind a kernel that lets it start, which only ours are known to
  // do; behind others it mostly costs, up to half a microsecond. Outside it always pays.
  bool early() const { return early_; }
  // Once it has been made: the next one may be early.
  void remember() const;

 private:
  cudaStream_t stream_;
  bool captured_ = false, early_ = false;
};

// Until every kernel before this one has ended and its writes are visible. Where it was not launched early, at once.
__device__ inline void wait_for_earlier_kernels() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Once every block has said so, or has ended, the next kernel's blocks may take the room that is left.
__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

inline cudaLaunchConfig_t launch_config(dim3 blocks, dim3 threads, cudaStream_t stream, size_t shared_bytes = 0) {
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.dynamicSmemBytes = shared_bytes;
  return config;
}

// `config` may have one attribute of its own.
template <class Kernel, class... Args>
int launch_kernel(Kernel* kernel, cudaLaunchConfig_t config, const Args&... args) {
  cudaLaunchAttribute attributes[2];
  std::copy_n(config.attrs, config.numAttrs, attributes);
  config.attrs = attributes;
  const Placement placement(config.stream);
  const auto launch = [&] { return cudaLaunchKernelEx(&config, kernel, args...); };
  cudaError_t status = cudaErrorUnknown;
  if (placement.early()) {
    cudaLaunchAttribute& early = attributes[config.numAttrs++];
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    status = launch();
    --config.numAttrs;
    if (status != cudaSuccess) cudaGetLastError();  // forget it
  }
  if (status != cudaSuccess) status = launch();
  if (status == cudaSuccess) placement.remember();
  return status;
}

}  // namespace fastops::FASTOPS_ARCH
