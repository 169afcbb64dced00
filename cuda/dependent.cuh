#pragma once
// Programmatic dependent launch: the blocks of a kernel come onto the card while the kernel before it in the stream still
// runs, which hides the launch. Such a kernel waits, in every thread, before it touches any memory: what is not its own
// may belong to any kernel before it. Behind a kernel that was not launched early itself, it may do so at its end if it
// touches nothing that one touches but what both read. PTX ISA, "griddepcontrol".
#include "dispatch.cuh"

namespace fastops::FASTOPS_ARCH {

// Whether the current device runs code that was compiled for compute capability 9.0 or later.
bool compute90_runs_here();
// Whether, there, kernels may be launched early, into CUDA graphs too.
bool early_launch_runs_here();

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

// Launches a kernel, early if it may be: it has wait_for_earlier_kernels() where it must.
template <class Kernel, class... Args>
int launch_kernel(Kernel* kernel, dim3 blocks, dim3 threads, cudaStream_t stream, bool early, const Args&... args) {
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = early && early_launch_runs_here() ? 1 : 0;
  const int error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error == cudaSuccess || config.numAttrs == 0) return error;
  cudaGetLastError();  // forget it
  config.numAttrs = 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace fastops::FASTOPS_ARCH
