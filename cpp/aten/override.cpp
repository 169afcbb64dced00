#include "aten/override.h"

#include <array>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "aten/kernels.h"

namespace fastops::aten {
namespace {

using torch::stable::detail::StableLibrary;

#define FASTOPS_NATIVE_LAYER_NORM \
  "(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)"
#define FASTOPS_NATIVE_LAYER_NORM_BACKWARD                                                                        \
  "(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? " \
  "bias, "                                                                                                        \
  "bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
#define FASTOPS_FUSED_RMS_NORM "(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)"
#define FASTOPS_FUSED_RMS_NORM_BACKWARD                                                                           \
  "(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? weight, bool[2] output_mask) -> " \
  "(Tensor, Tensor)"
#define FASTOPS_SOFTMAX "(Tensor self, int dim, bool half_to_float) -> Tensor"
#define FASTOPS_SOFTMAX_BACKWARD "(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype) -> Tensor"

struct Kernel {
  Overridden of;
  void (*boxed)(StableIValue*, uint64_t, uint64_t);
  // Where aten has no kernel of its own at a key, graphs that were made while ours was there need it later too.
  const char* stays = nullptr;
};
const Kernel kKernels[] = {
    {{"layer_norm", "native_layer_norm", FASTOPS_NATIVE_LAYER_NORM}, Boxed<&native_layer_norm>::call},
    {{"layer_norm", "native_layer_norm_backward", FASTOPS_NATIVE_LAYER_NORM_BACKWARD},
     Boxed<&native_layer_norm_backward>::call},
    {{"rms_norm", "_fused_rms_norm", FASTOPS_FUSED_RMS_NORM}, Boxed<&fused_rms_norm>::call},
    {{"rms_norm", "_fused_rms_norm_backward", FASTOPS_FUSED_RMS_NORM_BACKWARD},
     Boxed<&fused_rms_norm_backward>::call,
     "CPU"},
    {{"softmax", "_softmax", FASTOPS_SOFTMAX}, Boxed<&softmax>::call},
    {{"softmax", "_softmax_backward_data", FASTOPS_SOFTMAX_BACKWARD}, Boxed<&softmax_backward>::call},
    {{"log_softmax", "_log_softmax", FASTOPS_SOFTMAX}, Boxed<&log_softmax>::call},
    {{"log_softmax", "_log_softmax_backward_data", FASTOPS_SOFTMAX_BACKWARD}, Boxed<&log_softmax_backward>::call},
};
constexpr size_t kCount = std::size(kKernels);
#if FASTOPS_CUDA_ENABLED
constexpr const char* kKeys[] = {"CPU", "CUDA"};
#else
constexpr const char* kKeys[] = {"CPU"};
#endif
constexpr size_t kKeyCount = std::size(kKeys);

std::mutex mutex;

struct InForce {
  int times = 0;
  std::unique_ptr<StableLibrary> at[kKeyCount];
};
// Not destroyed: at a process's end the dispatcher may be gone before us.
std::array<InForce, kCount>& in_force() {
  static auto* const all = new std::array<InForce, kCount>;
  return *all;
}

// f(kernel, what is in force of it) of each kernel of a function, under the lock.
template <class F>
void for_each(const std::string& function, F f) {
  const std::lock_guard lock(mutex);
  std::string names;
  bool found = false;
  for (size_t k = 0; k < kCount; ++k) {
    const char* name = kKernels[k].of.function;
    if (function == name) {
      f(kKernels[k], in_force()[k]);
      found = true;
    } else if (names.empty() || names.find(name) == std::string::npos) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
  }
  if (!found) throw std::invalid_argument("[enable] a function must be one of " + names + ", got '" + function + "'");
}

}  // namespace

std::vector<Overridden> overridden() {
  std::vector<Overridden> all;
  for (const Kernel& kernel : kKernels) all.push_back(kernel.of);
  return all;
}

std::vector<std::string> keys() { return {std::begin(kKeys), std::end(kKeys)}; }

void enable(const std::string& function) {
  for_each(function, [](const Kernel& kernel, InForce& now) {
    if (now.times++ > 0) return;
    for (size_t k = 0; k < kKeyCount; ++k) {
      if (now.at[k]) continue;
      now.at[k] = std::make_unique<StableLibrary>(StableLibrary::Kind::IMPL, "aten", kKeys[k], __FILE__, __LINE__);
      now.at[k]->impl(kernel.of.op, kernel.boxed);
    }
  });
}

void disable(const std::string& function) {
  for_each(function, [](const Kernel& kernel, InForce& now) {
    if (now.times == 0 || --now.times > 0) return;
    for (size_t k = 0; k < kKeyCount; ++k)
      if (!kernel.stays || kernel.stays != std::string(kKeys[k])) now.at[k].reset();
  });
}

bool is_enabled(const std::string& function) {
  bool enabled = false;
  for_each(function, [&](const Kernel&, const InForce& now) { enabled |= now.times > 0; });
  return enabled;
}

// Where Python is, it has the kernel that was there before (src/fastops/overrides.py).
STABLE_TORCH_LIBRARY_FRAGMENT(fastops, m) {
  for (const Kernel& kernel : kKernels) m.def((std::string(kernel.of.op) + "_before" + kernel.of.schema).c_str());
}

}  // namespace fastops::aten
