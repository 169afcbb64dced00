#pragma once
// Where a tensor's rows lie, with their type.
#include "device/math.cuh"
#include "dispatch.cuh"
#include "plan/row.h"
#include "problem/row.h"

namespace fastops::FASTOPS_ARCH {

// Elements of a vector where T is read and R written: 16 bytes of the larger one.
template <class T, class R = T>
constexpr int kRowWidth = plan::row::width(sizeof(T), sizeof(R));

template <class T>
struct RowsOf {
  const T* data;
  int64_t inner, inner_stride, outer_stride;

  explicit RowsOf(const RowsView& view)
      : data(static_cast<const T*>(view.data)),
        inner(view.inner),
        inner_stride(view.inner_stride),
        outer_stride(view.outer_stride) {}

  __device__ const T* at(int64_t row) const {
    if (row < inner) return data + row * inner_stride;
    const int64_t outer = device::quotient(row, inner);
    return data + outer * outer_stride + (row - outer * inner) * inner_stride;
  }
};

}  // namespace fastops::FASTOPS_ARCH
