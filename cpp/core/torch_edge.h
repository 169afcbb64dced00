#pragma once
// What an op's Torch edge is written with: checks, allocation, the way to the reference, registration.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "core/cuda.h"
#include "core/dtype.h"
#include "core/gradients.h"
#include "core/isa.h"
#include "core/schema.h"
#include "core/tensor.h"
#include "plan/cpu.h"

namespace fastops {

template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << '[' << op << "] ";
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

// FASTOPS_CHECK(ok, "layer_norm", "weight must have shape ", ..., ", got ", ...)
#define FASTOPS_CHECK(ok, op, ...) \
  do {                             \
    if (!(ok)) [[unlikely]]        \
      fail(op, __VA_ARGS__);       \
  } while (0)

std::string text_of(Shape shape);       // [2, 3]
const char* text_of(ScalarType dtype);  // torch.float32
bool same_shape(Shape a, Shape b);

// Our dtype, or nothing for one that the kernels do not take.
std::optional<DType> dtype_of(const Tensor& tensor);
std::optional<DType> dtype_of(ScalarType dtype);
inline bool same_dtype(const Tensor& a, const Tensor& b) { return a.torch_dtype() == b.torch_dtype(); }
inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.device_type() == b.device_type() && a.get_device_index() == b.get_device_index();
}
ScalarType scalar_type(DType dtype);

// Whether our kernels take this tensor: a dtype of theirs, on the CPU or on a card that the binary has code for.
bool kernels_take(const Tensor& tensor);
// And a result of this dtype, the tensor's if there is none.
bool kernels_take(const Tensor& tensor, std::optional<ScalarType> result);

// `tensor` must be on `first`'s device; have its dtype as well; have its shape too.
void check_same_device(const char* op, const char* name, const Tensor& tensor, const char* first_name,
                       const Tensor& first);
void check_same_kind(const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like);
void check_alike(const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like);

// Uninitialised, dense. allocate_like follows torch.empty_like: a dense tensor's strides are kept.
Tensor allocate_like(const Tensor& like);
Tensor allocate(Shape sizes, const Tensor& device_of, DType dtype);
Tensor allocate(Shape sizes, Shape strides, const Tensor& device_of, DType dtype);  // dense if the strides are
Tensor allocate_bytes(int64_t count, const Tensor& device_of);                      // torch.uint8
inline Tensor nothing(const Tensor& device_of, DType dtype) {
  return allocate(std::array<int64_t, 1>{0}, device_of, dtype);
}
Tensor as_contiguous(Tensor tensor);
// The data of a tensor that outlives it, or of a contiguous copy, which it keeps. It takes no handle of the tensor's, which would
// cost an allocation.
class Contiguous {
 public:
  explicit Contiguous(const Tensor& tensor) {
    if (!tensor.is_contiguous()) copy_ = as_contiguous(tensor);
    data_ = (copy_ ? *copy_ : tensor).const_data_ptr();
  }
  Contiguous(const Contiguous&) = delete;
  const void* data() const { return data_; }

 private:
  OptionalTensor copy_;
  const void* data_;
};
Tensor to_dtype(Tensor tensor, DType dtype);
void fill_zero(const Tensor& tensor);

// Calls an op through the dispatcher.
template <class Result, class... Args>
Result call(const char* op, const Args&... args) {
  if constexpr (std::is_same_v<Result, Tensor>) {
    std::array<StableIValue, sizeof...(Args)> stack{to_stack(args)...};
    check_torch(op, torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
    return from_stack<Tensor>(stack[0]);
  } else {
    constexpr size_t results = std::tuple_size_v<Result>;
    std::array<StableIValue, std::max(sizeof...(Args), results)> stack{to_stack(args)...};
    check_torch(op, torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
    return [&]<size_t... K>(std::index_sequence<K...>) {
      return Result{from_stack<std::tuple_element_t<K, Result>>(stack[K])...};
    }(std::make_index_sequence<results>{});
  }
}

// f(begin, end) over [0, count) on torch's thread pool, in tasks of at least plan::cpu::kTaskBytes; at once where that is all.
template <class F>
void run_on_threads(int64_t count, int64_t bytes_each, const F& f) {
  const int64_t grain = std::max<int64_t>(1, plan::cpu::kTaskBytes / std::max<int64_t>(1, bytes_each));
  if (count <= grain)
    f(int64_t{0}, count);
  else
    torch::stable::parallel_for(0, count, grain, f);
}

}  // namespace fastops

// Registers torch.ops.fastops.<name> for the CPU and CUDA keys, and <name>_reference with the same signature, whose
// kernel is the plain composition in src/fastops/ops. "name(Tensor input) -> Tensor" is the one source of the schema.
#if FASTOPS_CUDA_ENABLED
#define FASTOPS_OP_CUDA(name, function) \
  STABLE_TORCH_LIBRARY_IMPL(fastops, CUDA, m) { m.impl(name, ::fastops::Boxed<&function>::call); }
#else
#define FASTOPS_OP_CUDA(name, function)
#endif
#define FASTOPS_SCHEMA(name, signature)       \
  STABLE_TORCH_LIBRARY_FRAGMENT(fastops, m) { \
    m.def(name signature);                    \
    m.def(name "_reference" signature);       \
  }
#define FASTOPS_OP(name, signature, function)                                                                 \
  static_assert(::fastops::schema::matches(signature, &function), "schema and C++ function disagree: " name); \
  FASTOPS_SCHEMA(name, signature)                                                                             \
  STABLE_TORCH_LIBRARY_IMPL(fastops, CPU, m) { m.impl(name, ::fastops::Boxed<&function>::call); }             \
  FASTOPS_OP_CUDA(name, function)                                                                             \
  static const ::fastops::Refusal C10_CONCATENATE(refusal_, C10_UID)(name, ::fastops::Refusing<&function, name>::call);
