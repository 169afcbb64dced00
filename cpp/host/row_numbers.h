#pragma once
// Tensors as the numbers of rows that problem/cross_entropy.h speaks of.
#include "core/torch_edge.h"
#include "problem/cross_entropy.h"

namespace fastops {

constexpr RowNumbers kNoNumbers{nullptr, DType::f32, 0};

// One number of all rows.
inline RowNumbers number_of_all(const Tensor& tensor) {
  return {const_cast<void*>(tensor.const_data_ptr()), *dtype_of(tensor), 0};
}
// Those that a kernel writes to a dense tensor.
inline RowNumbers written_numbers(const Tensor& tensor) { return {tensor.mutable_data_ptr(), *dtype_of(tensor), 1}; }

// A number of each row, at one distance from each other: as they lie, or of a copy, which this keeps.
class GivenNumbers {
 public:
  GivenNumbers() = default;
  // `tensor` must have this shape, a dtype of ours, and first's device.
  GivenNumbers(const char* op, const char* name, const Tensor& tensor, Shape shape, const char* first_name,
               const Tensor& first);
  const RowNumbers& get() const { return numbers_; }

 private:
  OptionalTensor copy_;
  RowNumbers numbers_ = kNoNumbers;
};

}  // namespace fastops
