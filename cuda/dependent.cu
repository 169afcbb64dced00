#include "dependent.cuh"

#include "card.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// Whether, there, kernels may be launched early, into CUDA graphs too.
bool early_launch_runs_here() {
  constexpr int kGraphs = 12030;  // their first version with such edges
  static const int driver = [] {
    int version = 0;
    cudaDriverGetVersion(&version);
    return version;
  }();
  return CUDART_VERSION >= kGraphs && driver >= kGraphs && compute90_runs_here();
}

// Where in a capture a stream is: the one node that its next one comes behind.
struct Place {
  unsigned long long capture = 0;
  cudaGraphNode_t node = nullptr;
};

// Whether the stream is captured, and where.
bool captured(cudaStream_t stream, Place& place) {
#if CUDART_VERSION < 12030
  return false;
#else
#if CUDART_VERSION < 13000
  const auto ask = cudaStreamGetCaptureInfo_v3;
#else
  const auto ask = cudaStreamGetCaptureInfo;
#endif
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;  // without asking for them the call fails where one is of another kind
  size_t count = 0;
  if (ask(stream, &status, &place.capture, nullptr, &nodes, &edges, &count) != cudaSuccess) {
    cudaGetLastError();  // forget it: the launch will say it
    return false;
  }
  if (status != cudaStreamCaptureStatusActive) return false;
  place.node = count == 1 ? nodes[0] : nullptr;
  return true;
#endif
}

// Our kernel that was captured last, by any thread: autograd has its own for the backward. Where threads capture at once, these
// may be of two, and a launch is late that could be early, or the other way round.
std::atomic<unsigned long long> last_capture{0};
std::atomic<cudaGraphNode_t> last_node{nullptr};

}  // namespace

Placement::Placement(cudaStream_t stream) : stream_(stream) {
  if (!early_launch_runs_here()) return;
  Place place;
  captured_ = captured(stream, place);
  early_ = !captured_ || (place.node && place.node == last_node && place.capture == last_capture);
}

void Placement::remember() const {
  Place place;
  if (!captured_ || !captured(stream_, place)) return;
  last_capture = place.capture;
  last_node = place.node;
}

}  // namespace fastops::FASTOPS_ARCH
