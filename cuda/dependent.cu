#include "dependent.cuh"

namespace fastops::FASTOPS_ARCH {

// What needs compute capability 9.0 is left out of the kernels where they were compiled for less.
static __global__ void probe() { wait_for_earlier_kernels(); }

bool compute90_runs_here() {
  static PerDevice answers;
  return answers.get([](int) -> int {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion >= 90 ? 1 : 0;
    cudaGetLastError();  // forget it
    return PerDevice::kUnknown;
  }) == 1;
}

bool early_launch_runs_here() {
  constexpr int kGraphs = 12030;  // their first version with such edges
  static const int driver = [] {
    int version = 0;
    cudaDriverGetVersion(&version);
    return version;
  }();
  return CUDART_VERSION >= kGraphs && driver >= kGraphs && compute90_runs_here();
}

}  // namespace fastops::FASTOPS_ARCH
