#include "core/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <stdexcept>

#if FASTOPS_CUDA_ENABLED
#include <cuda_runtime_api.h>
#endif

namespace fastops {

FASTOPS_CUDA_KERNEL(card, Card());

}  // namespace fastops

namespace fastops::cuda {
namespace {

#if FASTOPS_CUDA_ENABLED
constexpr int kMaxDevices = 128;

std::mutex mutex;
std::array<std::atomic<const Device*>, kMaxDevices> devices{};

const std::vector<int> kCubins = FASTOPS_CUBINS;
const std::vector<int> kPtx = FASTOPS_PTX;

// torch's shim for the current stream lives in libtorch_cuda, which a CPU-only torch does not have: linking to it
// would make the import fail there, so it is looked up at the first launch.
using StreamGetter = int32_t(int32_t device, void** stream);
StreamGetter* stream_getter() {
  static StreamGetter* const getter = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return library ? reinterpret_cast<StreamGetter*>(dlsym(library, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  return getter;
}

std::string text_of(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

std::string version_of(int cuda) { return std::to_string(cuda / 1000) + "." + std::to_string(cuda % 1000 / 10); }

// Neither a Tegra chip's machine code nor a desktop card's runs on the other kind, nor on a later chip of its own.
bool is_tegra(int capability) {
  constexpr int chips[] = {53, 62, 72, 87, 101, 110};
  return std::find(std::begin(chips), std::end(chips), capability) != std::end(chips);
}

std::string list_of(const std::vector<int>& archs) {
  std::string text;
  for (int arch : archs) text += (text.empty() ? "sm_" : ", sm_") + std::to_string(arch);
  return text.empty() ? "none" : text;
}

std::string older_driver(int driver) {
  return "the NVIDIA driver runs CUDA " + version_of(driver) +
         " and older, this build is of CUDA " FASTOPS_CUDA_VERSION;
}

Device probe(int index) {
  int major = 0, minor = 0, driver = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error == cudaSuccess && driver / 1000 < CUDART_VERSION / 1000) return {-1, 0, older_driver(driver)};
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
  if (error == cudaSuccess) return fit(10 * major + minor, driver);
  cudaGetLastError();  // not the next launch's error
  return {
      -1, 0,
      std::string("the driver does not take this build's CUDA " FASTOPS_CUDA_VERSION ": ") + cudaGetErrorString(error)};
}
#endif

}  // namespace

std::vector<std::string> arch_groups() {
#define FASTOPS_GROUP(arch, ...) #arch,
  return {FASTOPS_FOR_EACH_ARCH(FASTOPS_GROUP)};
}

#if FASTOPS_CUDA_ENABLED

void check_environment() { plan::forced_card(); }

int device_count(std::string* error) {
  int count = 0, driver = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess) return count;
  cudaGetLastError();
  const bool older =
      status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0;
  if (error) *error = older ? older_driver(driver) : cudaGetErrorString(status);
  return 0;
}

// "sm_90" machine code runs on cards of the same major version and the same or a later minor one, under any driver of
// its CUDA major. PTX of 90 is compiled for any later card by a driver that is not older than the nvcc that wrote it.
Device fit(int capability, int driver) {
  const std::string card = "compute capability " + text_of(capability);
  if (driver / 1000 < CUDART_VERSION / 1000) return {-1, capability, older_driver(driver)};
  // `generic`, the first group, holds every arch of the list; a group for single archs would come after it.
  for (int arch : kCubins)
    if (arch == capability ||
        (!is_tegra(capability) && !is_tegra(arch) && arch / 10 == capability / 10 && arch < capability))
      return {0, capability, "machine code for " + card};
  for (int arch : kPtx) {
    if (arch > capability) continue;
    if (driver < CUDART_VERSION)
      return {-1, capability, card + " needs PTX to be compiled, and " + older_driver(driver)};
    return {0, capability, "PTX, compiled by the driver for " + card};
  }
  return {-1, capability,
          card + " is not in this build's machine code (" + list_of(kCubins) + ") and older than its PTX"};
}

const Device& device(int index) {
  if (index < 0 || index >= kMaxDevices)
    throw std::out_of_range("[fastops] CUDA device index " + std::to_string(index));
  if (const Device* known = devices[index].load(std::memory_order_acquire)) return *known;
  std::lock_guard lock(mutex);
  if (const Device* known = devices[index].load(std::memory_order_acquire)) return *known;
  auto fresh = std::make_unique<Device>(probe(index));
  devices[index].store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

Card card(int index) {
  if (device(index).group < 0) throw std::runtime_error("[plan] " + device(index).reason);
  const Launch launch("plan", index);
  return card_cuda[launch.group()]();
}

// Almost always the device is current, and nothing is to be done; a guard takes an allocation and two questions to the
// driver. Otherwise torch's guard comes first: it knows which devices have a context and makes none by going back. Ours
// too, since the runtime is linked statically and may have its own idea of the current device.
Launch::Launch(const char* op, int device_index) : op_(op), device_(device_index), group_(device(device_index).group) {
  StreamGetter* getter = stream_getter();
  if (!getter || getter(device_, &stream_) != 0)
    throw std::runtime_error(std::string("[") + op_ + "] cannot get PyTorch's current CUDA stream");
  int current = -1;
  check(cudaGetDevice(&current));
  if (current == device_) return;
  guard_.emplace(device_);
  check(cudaGetDevice(&current));
  if (current == device_) return;
  check(cudaSetDevice(device_));
  previous_ = current;
}

Launch::~Launch() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

void Launch::check(int error) const {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw std::runtime_error(std::string("[") + op_ + "] CUDA error on device " + std::to_string(device_) + ": " +
                           cudaGetErrorString(static_cast<cudaError_t>(error)));
}

#else  // a CPU-only build: nothing below is reached by an op

void check_environment() {
  if (const char* forced = std::getenv("FASTOPS_CUDA_CARD"); forced && *forced)
    throw std::invalid_argument(std::string("[fastops] FASTOPS_CUDA_CARD must be unset, since this build has no CUDA "
                                            "kernels, got '") +
                                forced + "'");
}
int device_count(std::string* error) {
  if (error) *error = "this build has no CUDA kernels";
  return 0;
}
const Device& device(int) {
  static const Device none{-1, 0, "this build has no CUDA kernels"};
  return none;
}
Device fit(int, int) { return device(0); }
Card card(int) { throw std::runtime_error("[plan] this build has no CUDA kernels"); }
Launch::Launch(const char* op, int device_index) : op_(op), device_(device_index) {}
Launch::~Launch() = default;
void Launch::check(int) const {}

#endif

}  // namespace fastops::cuda
