#pragma once
// In a process without Python nothing records our operators for a backward: there an input that requires a gradient is an error,
// where it would otherwise lose its gradient without a word. In Python the functions of fastops record, and this stays out.
#include <algorithm>

#include "core/tensor.h"

namespace fastops {

// Throws if gradients are recorded and the tensor requires one.
void refuse_gradient(const char* op, const Tensor& tensor);

// Whether this process has a Python interpreter.
bool has_python();

using BoxedFunction = void(StableIValue*, uint64_t, uint64_t);

// Puts `function` at the Autograd key of fastops::<op> where there is no Python.
struct Refusal {
  Refusal(const char* op, BoxedFunction* function);
};

// The function behind its check: what the dispatcher calls at that key, whose device the function finds by itself.
template <size_t size>
struct Text {
  char text[size];
  constexpr Text(const char (&from)[size]) { std::copy(from, from + size, text); }
};
template <auto function, Text op>
struct Refusing;
template <class Result, class... Args, Result (*function)(Args...), Text op>
struct Refusing<function, op> {
  static void call(StableIValue* stack, uint64_t arguments, uint64_t results) {
    check(stack, std::index_sequence_for<Args...>{});
    Boxed<function>::call(stack, arguments, results);
  }

 private:
  template <size_t... K>
  static void check(StableIValue* stack, std::index_sequence<K...>) {
    (check_one<std::remove_cvref_t<Args>>(stack[K]), ...);
  }
  template <class T>
  static void check_one(StableIValue value) {
    namespace detail = torch::stable::detail;
    const auto borrowed = [](AtenTensorHandle handle) {
      AtenTensorHandle own = nullptr;
      check_torch("aoti_torch_new_tensor_handle", aoti_torch_new_tensor_handle(handle, &own));
      refuse_gradient(op.text, Tensor(own));
    };
    if constexpr (std::is_same_v<T, Tensor>) borrowed(detail::to<AtenTensorHandle>(value));
    // An optional's word is the address of the tensor's own, which the function takes over.
    if constexpr (std::is_same_v<T, OptionalTensor>)
      if (value) borrowed(detail::to<AtenTensorHandle>(*reinterpret_cast<StableIValue*>(value)));
  }
};

}  // namespace fastops
