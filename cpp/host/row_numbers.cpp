#include "host/row_numbers.h"

namespace fastops {

// The distance of elements from each other in their order, if it is one.
static std::optional<int64_t> even_stride(const Tensor& tensor) {
  int64_t stride = 0, count = 1;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    if (tensor.size(d) == 1) continue;
    if (count == 1)
      stride = tensor.stride(d);
    else if (tensor.stride(d) != stride * count)
      return std::nullopt;
    count *= tensor.size(d);
  }
  return stride;
}

GivenNumbers::GivenNumbers(const char* op, const char* name, const Tensor& tensor, Shape shape, const char* first_name,
                           const Tensor& first) {
  check_same_device(op, name, tensor, first_name, first);
  FASTOPS_CHECK(same_shape(tensor.sizes(), shape), op, name, " must have shape ", text_of(shape), ", got ",
                text_of(tensor.sizes()));
  const auto dtype = dtype_of(tensor);
  FASTOPS_CHECK(dtype, op, name, " must have a floating-point dtype, got ", text_of(tensor.scalar_type()));
  const auto stride = tensor.numel() == 0 ? 1 : even_stride(tensor);
  if (!stride) copy_ = as_contiguous(tensor);
  numbers_ = {const_cast<void*>((copy_ ? *copy_ : tensor).const_data_ptr()), *dtype, stride.value_or(1)};
}

}  // namespace fastops
