#pragma once
// The CUDA edge: which cards the binary has code for, and the guard and stream of a launch.
#include <torch/csrc/stable/accelerator.h>

#include <optional>
#include <string>
#include <vector>

#include "core/export.h"
#include "fastops_build.h"
#include "plan/card.h"

namespace fastops::cuda {

struct Device {
  int group;           // index into the arch groups in use, or -1: no code for this card
  int capability;      // 10 * major + minor
  std::string reason;  // why that group, or why none
};

// Cached per device; the first call asks the driver.
FASTOPS_EXPORT const Device& device(int index);
FASTOPS_EXPORT int device_count(std::string* error);
// What a card of this capability would run under a driver for CUDA `driver`, 1000 * major + 10 * minor. Asks nobody.
FASTOPS_EXPORT Device fit(int capability, int driver);
// The facts of a device that has kernels. Throws std::runtime_error with the reason where it has none.
FASTOPS_EXPORT Card card(int device);

FASTOPS_EXPORT std::vector<std::string> arch_groups();
// Throws std::invalid_argument if FASTOPS_CUDA_CARD names no known card, or the build has no CUDA kernels. Touches no
// driver.
FASTOPS_EXPORT void check_environment();

// Makes `device` current for this thread's launches and gives torch's current stream there.
class Launch {
 public:
  Launch(const char* op, int device);
  ~Launch();
  Launch(const Launch&) = delete;
  void* stream() const { return stream_; }
  int group() const { return group_; }
  // Throws with the op's name if `error` (a cudaError_t) is not success.
  void check(int error) const;

 private:
  const char* op_;
  int device_, previous_ = -1, group_ = 0;
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;  // where another device was current
  void* stream_ = nullptr;
};

}  // namespace fastops::cuda

#define FASTOPS_ARCH_DECLARE(arch, kernel) \
  namespace arch {                         \
  extern kernel##_cuda_type kernel;        \
  }
#define FASTOPS_ARCH_ENTRY(arch, kernel) &arch::kernel,
#define FASTOPS_CUDA_KERNEL(kernel, ...)              \
  using kernel##_cuda_type = __VA_ARGS__;             \
  FASTOPS_FOR_EACH_ARCH(FASTOPS_ARCH_DECLARE, kernel) \
  constexpr kernel##_cuda_type* kernel##_cuda[] = {FASTOPS_FOR_EACH_ARCH(FASTOPS_ARCH_ENTRY, kernel) nullptr}
