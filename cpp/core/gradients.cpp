#include "core/gradients.h"

#include <dlfcn.h>

#include "core/torch_edge.h"

namespace fastops {

// torch's stable interface has no question for requires_grad: an alias of a tensor that requires a gradient is no leaf.
void refuse_gradient(const char* op, const Tensor& tensor) {
  if (!aoti_torch_grad_mode_is_enabled()) return;
  const auto alias = call<Tensor>("aten::alias", tensor);
  std::array<StableIValue, 1> stack{to_stack(alias)};
  check_torch("aten::is_leaf", torch_call_dispatcher("aten::is_leaf", "", stack.data(), TORCH_ABI_VERSION));
  FASTOPS_CHECK(
      torch::stable::detail::to<bool>(stack[0]), op,
      "an input requires a gradient, which this operator by itself does not record: expected no_grad, detached "
      "inputs, or torch's own function after fastops_enable()");
}

bool has_python() {
  const auto is_initialized = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  return is_initialized && is_initialized();
}

Refusal::Refusal(const char* op, BoxedFunction* function) {
  using torch::stable::detail::StableLibrary;
  if (has_python()) return;
  // Never destroyed: at a process's end the dispatcher may be gone before us.
  static auto* const library = new StableLibrary(StableLibrary::Kind::IMPL, "fastops", "Autograd", "fastops", 0);
  library->impl(op, function);
}

}  // namespace fastops
