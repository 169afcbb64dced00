#include "aten/norm.h"

namespace fastops::aten {

void drop_undefined(OptionalTensor& parameter) {
  if (!parameter) return;
  bool defined = false;
  check_torch("is_defined", aoti_torch_is_defined(parameter->get(), &defined));
  if (!defined) parameter.reset();
}

bool supports(const Tensor& input, const Sizes& normalized_shape, const OptionalTensor& weight,
              const OptionalTensor& bias) {
  const int64_t dims = static_cast<int64_t>(normalized_shape.size()), rank = input.dim();
  if (!kernels_take(input) || dims < 1 || dims > rank || input.numel() == 0) return false;
  const Shape shape(normalized_shape.data(), normalized_shape.size());
  if (!same_shape(shape, Shape(input.sizes().data() + rank - dims, dims))) return false;
  const DType rows = *dtype_of(input);
  const auto fits = [&](const OptionalTensor& t) {
    if (!t) return true;
    const auto own = dtype_of(*t);
    return own && (*own == rows || (size_of(rows) == 2 && *own == DType::f32)) && same_device(*t, input) &&
           same_shape(t->sizes(), shape);
  };
  return fits(weight) && fits(bias) && (!weight || !bias || same_dtype(*weight, *bias));
}

std::vector<int64_t> statistics_shape(const Tensor& input, size_t dims) {
  std::vector<int64_t> shape(input.sizes().begin(), input.sizes().end());
  std::fill(shape.end() - static_cast<std::ptrdiff_t>(dims), shape.end(), 1);
  return shape;
}

Tensor reshaped(const Tensor& dense, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  AtenTensorHandle handle = nullptr;
  check_torch("reinterpret", aoti_torch__reinterpret_tensor(dense.get(), static_cast<int64_t>(shape.size()),
                                                            shape.data(), strides.data(), 0, &handle));
  return Tensor(handle);
}

Tensor or_undefined(bool needed, Tensor tensor) {
  if (needed) return tensor;
  AtenTensorHandle handle = nullptr;
  check_torch("undefined", aoti_torch_new_uninitialized_tensor(&handle));
  return Tensor(handle);
}

}  // namespace fastops::aten
