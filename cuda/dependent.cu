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

namespace {

// A place in a CUDA graph that is being captured: the node that the next one of the stream comes behind.
struct Place {
  unsigned long long capture = 0;
  cudaGraphNode_t node = nullptr;
};

// Whether the stream is being captured, and where.
bool capturing(cudaStream_t stream, Place& place) {
#if CUDART_VERSION >= 12030
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const auto ask = cudaStreamGetCaptureInfo;
#else
  const auto ask = cudaStreamGetCaptureInfo_v3;
#endif
  const cudaGraphEdgeData* edges = nullptr;
  if (ask(stream, &status, &place.capture, nullptr, &nodes, &edges, &count) != cudaSuccess) {
    cudaGetLastError();  // forget it: the launch says what is wrong
    return false;
  }
  if (status != cudaStreamCaptureStatusActive) return false;
  place.node = count == 1 ? nodes[0] : nullptr;
  return true;
#else
  return false;
#endif
}

// Of the kernel of ours that was captured last, by any thread: the backward's are launched by threads of their own. Where two
// captures mix, a launch may be early that had better not be, or the other way round.
std::atomic<unsigned long long> last_capture{0};
std::atomic<cudaGraphNode_t> last_node{nullptr};

}  // namespace

bool early_launch_pays(cudaStream_t stream) {
  if (!early_launch_runs_here()) return false;
  Place place;
  return !capturing(stream, place) || (place.node && place.node == last_node && place.capture == last_capture);
}

void remember_launch(cudaStream_t stream) {
  Place place;
  if (!early_launch_runs_here() || !capturing(stream, place)) return;
  last_capture = place.capture;
  last_node = place.node;
}

}  // namespace fastops::FASTOPS_ARCH
