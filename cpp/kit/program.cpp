#include "kit/program.h"

#include <mutex>

#include "kit/launch.h"

namespace fastops::kit {
namespace {

// A program lives as long as the process: its number is the default of a schema's argument.
constexpr int64_t kMaxPrograms = 1 << 16;
std::atomic<Program*> programs[kMaxPrograms];
int64_t program_count = 0;
std::mutex mutex;  // of what writes

const Program& program_of(int64_t id) {
  const Program* program = id >= 0 && id < kMaxPrograms ? programs[id].load(std::memory_order_acquire) : nullptr;
  FASTOPS_CHECK(program, "kit", "there is no op with the number ", id);
  return *program;
}

const Compiled* find(const Program& program, int64_t dtypes, int device, int variant) {
  for (const Compiled* k = program.kernels.load(std::memory_order_acquire); k; k = k->next)
    if (k->dtypes == dtypes && k->device == device && k->variant == variant) return k;
  return nullptr;
}

}  // namespace

uint64_t Program::kernel(int64_t dtypes, int device, int variant) const {
  const Compiled* kernel = find(*this, dtypes, device, variant);
  if (!kernel) [[unlikely]] {
    std::array<StableIValue, 4> stack{to_stack(id), to_stack(dtypes), to_stack(int64_t{device}),
                                      to_stack(int64_t{variant})};
    check_torch(name.c_str(), torch_call_dispatcher("fastops_kit::compile", "", stack.data(), TORCH_ABI_VERSION));
    kernel = find(*this, dtypes, device, variant);
    FASTOPS_CHECK(kernel, name.c_str(), "nothing was compiled for variant ", variant);
  }
  return kernel->handle;
}

Call::Call(StableIValue* stack, uint64_t arguments) : program(program_of(from_stack<int64_t>(stack[arguments - 1]))) {
  inputs.reserve(program.tensors.size());
  for (size_t k = 0; k < program.tensors.size(); ++k) inputs.push_back(from_stack<Tensor>(stack[k]));
  for (int k = 0; k < program.scalars; ++k) scalars[k] = from_stack<double>(stack[inputs.size() + k]);
}

bool Call::promote() {
  const Tensor* first = &inputs[0];
  for (const Tensor& t : inputs)
    if (t.is_cuda()) {
      first = &t;
      break;
    }
  device = first->is_cuda() ? first->get_device_index() : -1;

  // As torch promotes: 0-d tensors only count among themselves.
  bool any = false, any_dims = false;
  dtypes = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Tensor& t = inputs[k];
    if (!same_device(t, *first)) {
      if (t.is_cpu() && t.dim() == 0) return false;
      check_same_device(name(), program.tensors[k].c_str(), t, program.tensors[first - inputs.data()].c_str(), *first);
    }
    const std::optional<DType> known = dtype_of(t);
    if (!known || t.sizes().size() > kMaxRank) return false;
    const bool dims = t.dim() > 0;
    if (!any || (dims && !any_dims)) {
      dtype = *known;
    } else if (dims == any_dims) {
      dtype = fastops::promote(dtype, *known);
    }
    any = true;
    any_dims |= dims;
    dtypes |= static_cast<int64_t>(*known) << (2 * k + 2);
  }
  dtypes |= static_cast<int64_t>(dtype);
  return true;
}

void Call::run_reference(StableIValue* stack) {
  for (size_t k = 0; k < inputs.size(); ++k) stack[k] = to_stack(std::move(inputs[k]));
  check_torch(name(), torch_call_dispatcher(program.reference.c_str(), "", stack, TORCH_ABI_VERSION));
}

void broadcast(const Call& call, Layout& layout) {
  for (const Tensor& t : call.inputs) layout.ndim = std::max(layout.ndim, t.sizes().size());
  for (size_t d = 0; d < layout.ndim; ++d) {
    size_t decided = 0;
    layout.sizes[d] = 1;
    for (size_t k = 0; k < call.inputs.size(); ++k) {
      const Tensor& t = call.inputs[k];
      const size_t missing = layout.ndim - t.sizes().size();
      const int64_t size = d < missing ? 1 : t.size(d - missing);
      if (size == 1) continue;
      FASTOPS_CHECK(layout.sizes[d] == 1 || layout.sizes[d] == size, call.name(), call.program.tensors[decided],
                    " and ", call.program.tensors[k], " must have shapes that broadcast, got ",
                    text_of(call.inputs[decided].sizes()), " and ", text_of(t.sizes()));
      layout.sizes[d] = size;
      decided = k;
    }
  }
}

int64_t stride_of(const Tensor& tensor, const Layout& layout, size_t d) {
  const size_t missing = layout.ndim - tensor.sizes().size();
  return d < missing || tensor.size(d - missing) == 1 ? 0 : tensor.stride(d - missing);
}

int64_t define(std::string name, std::string reference, std::vector<std::string> tensors, int scalars, int outputs) {
  FASTOPS_CHECK(static_cast<int>(tensors.size()) + outputs <= kMaxOperands && scalars <= kMaxScalars, name.c_str(),
                "at most ", kMaxOperands, " tensors in and out and ", kMaxScalars, " scalars are supported, got ",
                tensors.size(), " in, ", outputs, " out and ", scalars);
  std::lock_guard lock(mutex);
  FASTOPS_CHECK(program_count < kMaxPrograms, name.c_str(), "this process has defined ", kMaxPrograms,
                " ops already, derivatives among them");
  auto* program =
      new Program{program_count, std::move(name), std::move(reference), std::move(tensors), scalars, outputs};
  programs[program_count].store(program, std::memory_order_release);
  return program_count++;
}

void implement(const std::string& op, bool reduces) {
  const size_t colons = op.find("::");
  FASTOPS_CHECK(colons != std::string::npos, "kit", "an op's name must be space::name, got ", op);
  using torch::stable::detail::StableLibrary;
  for (const char* key : {"CPU", "CUDA"}) {
#if !FASTOPS_CUDA_ENABLED
    if (key[1] == 'U') continue;
#endif
    // Kept: what it registers goes with it.
    auto* library = new StableLibrary(StableLibrary::Kind::IMPL, op.substr(0, colons).c_str(), key, __FILE__, __LINE__);
    library->impl(op.c_str() + colons + 2, reduces ? reduction : pointwise);
  }
}

void add_kernel(int64_t id, int64_t dtypes, int device, int variant, uint64_t handle) {
  auto& program = const_cast<Program&>(program_of(id));
  std::lock_guard lock(mutex);
  if (find(program, dtypes, device, variant)) return;  // another thread was first
  const Compiled* next = program.kernels.load(std::memory_order_relaxed);
  program.kernels.store(new Compiled{dtypes, device, variant, handle, next}, std::memory_order_release);
}

void add_cuda_kernel(int64_t id, int64_t dtypes, int device, int variant, uintptr_t image, const std::string& symbol) {
  auto* kernel = new Kernel(program_of(id).name, *reinterpret_cast<const Image*>(image), symbol, device);
  add_kernel(id, dtypes, device, variant, reinterpret_cast<uintptr_t>(kernel));
}

}  // namespace fastops::kit
