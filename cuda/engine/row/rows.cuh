#pragma once
// Where a tensor's rows lie, with their type.
#include "problem/row.h"

namespace fastops::FASTOPS_ARCH {

// Row r begins at element (r / inner)·outer_stride + (r % inner)·inner_stride.
template <class T>
struct RowsOf {
  const T* data;
  int64_t inner, inner_stride, outer_stride;
  double inner_inverse;

  explicit RowsOf(const RowsView& view)
      : data(static_cast<const T*>(view.data)),
        inner(view.inner),
        inner_stride(view.inner_stride),
        outer_stride(view.outer_stride),
        inner_inverse(1 / static_cast<double>(view.inner)) {}

  __device__ const T* at(int64_t row) const {
    if (row < inner) return data + row * inner_stride;
    // A division of 64 bits would be a third of the code. The quotient of doubles is at most one too large or too
    // small.
    int64_t outer = static_cast<int64_t>(static_cast<double>(row) * inner_inverse);
    const int64_t rest = row - outer * inner;
    outer += rest >= inner ? 1 : rest < 0 ? -1 : 0;
    return data + outer * outer_stride + (row - outer * inner) * inner_stride;
  }
};

}  // namespace fastops::FASTOPS_ARCH
