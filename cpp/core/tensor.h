#pragma once
// A tensor of torch's, and the way between the dispatcher's stack of 64-bit words and C++ arguments. Both do what
// torch::stable::Tensor and TORCH_BOX do, for less: no shared_ptr a tensor, each property is asked for once, arguments
// and results are moved. On small inputs that is a third of an op's time in C++.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fastops {

using torch::headeronly::ScalarType;
using Shape = torch::headeronly::IntHeaderOnlyArrayRef;

// Throws with torch's own message, where this torch hands it out, if `code` is not success.
[[noreturn]] void torch_failed(const char* what);
inline void check_torch(const char* what, AOTITorchError code) {
  if (code != TORCH_SUCCESS) [[unlikely]]
    torch_failed(what);
}

// Owns a handle. Moving is free; a copy is another handle of the same tensor, and costs an allocation.
class Tensor {
 public:
  explicit Tensor(AtenTensorHandle owned) : handle_(owned) {}
  Tensor(const Tensor& other) : Tensor(other.another_handle()) {}
  Tensor(Tensor&& other) noexcept { swap(other); }
  Tensor& operator=(Tensor other) noexcept {
    swap(other);
    return *this;
  }
  ~Tensor() {
    if (handle_) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  AtenTensorHandle another_handle() const {
    AtenTensorHandle handle = nullptr;
    check_torch("aoti_torch_new_tensor_handle", aoti_torch_new_tensor_handle(handle_, &handle));
    return handle;
  }

  // Borrowed from the tensor, which nobody resizes while an op runs.
  Shape sizes() const { return known().sizes; }
  Shape strides() const { return known().strides; }
  int64_t dim() const { return static_cast<int64_t>(sizes().size()); }
  int64_t size(int64_t d) const { return sizes()[d]; }
  int64_t stride(int64_t d) const { return strides()[d]; }
  int64_t numel() const {
    int64_t numel = 1;
    for (int64_t size : sizes()) numel *= size;
    return numel;
  }
  int32_t torch_dtype() const { return known().dtype; }
  ScalarType scalar_type() const {
    return torch::stable::detail::to<ScalarType>(torch::stable::detail::from(torch_dtype()));
  }
  int32_t device_type() const { return known().device_type; }
  int32_t get_device_index() const { return known().device_index; }
  bool is_cpu() const { return device_type() == aoti_torch_device_type_cpu(); }
  bool is_cuda() const { return device_type() == aoti_torch_device_type_cuda(); }
  bool is_contiguous() const {
    bool contiguous = false;
    check_torch("is_contiguous", aoti_torch_is_contiguous(handle_, &contiguous));
    return contiguous;
  }
  const void* const_data_ptr() const {
    const void* data = nullptr;
    check_torch("data_ptr", torch_get_const_data_ptr(handle_, &data));
    return data;
  }
  void* mutable_data_ptr() const {
    void* data = nullptr;
    check_torch("data_ptr", torch_get_mutable_data_ptr(handle_, &data));
    return data;
  }

 private:
  struct Properties {
    Shape sizes, strides;
    int32_t dtype, device_type, device_index = -2;
  };

  // Asked for at the first need: of most outputs nobody reads them.
  const Properties& known() const {
    if (properties_.device_index != -2) return properties_;
    int64_t dim = 0;
    int64_t *sizes = nullptr, *strides = nullptr;
    check_torch("sizes", aoti_torch_get_sizes(handle_, &sizes));
    check_torch("strides", aoti_torch_get_strides(handle_, &strides));
    check_torch("dim", aoti_torch_get_dim(handle_, &dim));
    check_torch("dtype", aoti_torch_get_dtype(handle_, &properties_.dtype));
    check_torch("device", aoti_torch_get_device_type(handle_, &properties_.device_type));
    check_torch("device", aoti_torch_get_device_index(handle_, &properties_.device_index));
    properties_.sizes = Shape(sizes, dim);
    properties_.strides = Shape(strides, dim);
    return properties_;
  }

  void swap(Tensor& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(properties_, other.properties_);
  }

  AtenTensorHandle handle_ = nullptr;
  mutable Properties properties_;
};

using OptionalTensor = std::optional<Tensor>;

// Kernels for bf16 take a NaN to have bits in the upper half of f32 alone (kernels/pairs.h).
inline double with_short_nan(double number) {
  return number == number ? number : std::numeric_limits<double>::quiet_NaN();
}

// From the stack: the word's owner becomes the result.
template <class T>
T from_stack(StableIValue value) {
  namespace detail = torch::stable::detail;
  if constexpr (std::is_same_v<T, Tensor>) {
    return Tensor(detail::to<AtenTensorHandle>(value));
  } else if constexpr (std::is_same_v<T, OptionalTensor>) {
    auto handle = detail::to<std::optional<AtenTensorHandle>>(value);
    return handle ? OptionalTensor(std::in_place, *handle) : OptionalTensor();
  } else if constexpr (std::is_same_v<T, std::string>) {  // detail::to leaks it
    const auto handle = detail::to<StringHandle>(value);
    const char* data = nullptr;
    size_t length = 0;
    check_torch("str", torch_string_c_str(handle, &data));
    check_torch("str", torch_string_length(handle, &length));
    std::string text(data, length);
    check_torch("str", torch_delete_string(handle));
    return text;
  } else if constexpr (std::is_same_v<T, double>) {
    return with_short_nan(detail::to<double>(value));
  } else if constexpr (std::is_same_v<T, std::optional<double>>) {
    const auto number = detail::to<std::optional<double>>(value);
    return number ? std::optional(with_short_nan(*number)) : number;
  } else {
    return detail::to<T>(value);
  }
}

// To the stack, which owns what the word refers to.
template <class T>
StableIValue to_stack(T value) {
  namespace detail = torch::stable::detail;
  if constexpr (std::is_same_v<T, Tensor>) {
    return detail::from(value.release());
  } else if constexpr (std::is_same_v<T, OptionalTensor>) {
    return detail::from(value ? std::optional(value->release()) : std::nullopt);
  } else if constexpr (std::is_same_v<T, std::vector<bool>>) {  // of bits, which have no addresses
    bool values[8];
    if (value.size() > std::size(values)) throw std::out_of_range("[fastops] a list of more than 8 bools");
    std::copy(value.begin(), value.end(), values);
    return detail::from(torch::headeronly::HeaderOnlyArrayRef<bool>(values, value.size()));
  } else {
    return detail::from(value);
  }
}

// The function as the dispatcher calls it. That it has the schema's arguments is checked by schema.h.
template <auto function>
struct Boxed;
template <class Result, class... Args, Result (*function)(Args...)>
struct Boxed<function> {
  static void call(StableIValue* stack, uint64_t, uint64_t) { call(stack, std::index_sequence_for<Args...>{}); }

 private:
  template <size_t... K>
  static void call(StableIValue* stack, std::index_sequence<K...>) {
    std::tuple<std::remove_cvref_t<Args>...> args{from_stack<std::remove_cvref_t<Args>>(stack[K])...};
    put(stack, function(std::get<K>(std::move(args))...));
  }
  static void put(StableIValue* stack, Tensor result) { stack[0] = to_stack(std::move(result)); }
  template <class... R>
  static void put(StableIValue* stack, std::tuple<R...> results) {
    std::apply([&](auto&... result) { ((*stack++ = to_stack(std::move(result))), ...); }, results);
  }
};

}  // namespace fastops
