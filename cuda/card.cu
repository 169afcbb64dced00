#include "card.cuh"

#include <mutex>

#include "dependent.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// What needs compute capability 9.0 is left out of the kernels where they were compiled for less.
__global__ void probe() { wait_for_earlier_kernels(); }

int compute90() {
  static PerDevice answers;
  return answers.get([](int) -> int {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, probe) == cudaSuccess) return attributes.ptxVersion >= 90 ? 1 : 0;
    cudaGetLastError();  // forget it
    return PerDevice::kUnknown;
  });
}

int attribute(cudaDeviceAttr of, int device) {
  int value = 0;
  cudaDeviceGetAttribute(&value, of, device);
  return value;
}

// The most blocks of a cluster, if each takes all the shared memory that a block may have; -1: no answer.
int largest_cluster(int block_bytes) {
  cudaLaunchConfig_t config = launch_config(1, 1024, nullptr, static_cast<size_t>(block_bytes));
  int blocks = 0;
  const bool answered =
      cudaFuncSetAttribute(probe, cudaFuncAttributeMaxDynamicSharedMemorySize, block_bytes) == cudaSuccess &&
      cudaFuncSetAttribute(probe, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
      cudaOccupancyMaxPotentialClusterSize(&blocks, probe, &config) == cudaSuccess;
  if (!answered) cudaGetLastError();  // forget it
  return answered ? blocks : -1;
}

}  // namespace

bool compute90_runs_here() { return compute90() == 1; }

Card card() {
  static const Card* const forced = plan::forced_card();
  static std::atomic<const Card*> known[PerDevice::kDevices];
  int device = 0;
  cudaGetDevice(&device);
  const bool keeps = device < PerDevice::kDevices;
  if (keeps)
    if (const Card* card = known[device].load(std::memory_order_acquire)) return *card;
  Card card;
  card.multiprocessors = std::max(1, attribute(cudaDevAttrMultiProcessorCount, device));
  card.threads = attribute(cudaDevAttrMaxThreadsPerMultiProcessor, device);
  card.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  card.block_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  const int runs = compute90(), blocks = runs == 1 ? largest_cluster(card.block_bytes) : 0;
  card.cluster_blocks = std::max(blocks, 0);
  if (forced) card = plan::at_most(card, *forced);
  if (keeps && runs != PerDevice::kUnknown && blocks >= 0) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (!known[device]) known[device].store(new Card(card), std::memory_order_release);
  }
  return card;
}

}  // namespace fastops::FASTOPS_ARCH
