#pragma once
// Operands with an element for each column, such as a weight or a bias. Their dtype is that of the rows, or f32 beside a half
// type.
#include "kernels/units.h"

namespace fastops::FASTOPS_ISA {

// A column operand of a kernel for T: data + offset, or `missing` in every column if data is null.
template <class T>
struct Column {
  using A = accumulate_t<T>;
  const void* data;
  DType dtype;
  A missing, offset;

  // Whether a kernel for a half type can read the operand in place.
  FASTOPS_INLINE bool in_place() const { return sizeof(T) == 2 && data && dtype != DType::f32 && offset == 0; }
  FASTOPS_INLINE const T* place(int64_t begin) const { return static_cast<const T*>(data) + begin; }

  // Return the address of columns [begin, begin + count) in the type that is computed in: in the tensor, or in `room`.
  __attribute__((noinline)) const A* at(int64_t begin, int64_t count, A* room) const {
    if (!data) {
      for_units<T>(count, [&](int64_t i, auto) { hold(room + i, every<T>(missing)); });
      return room;
    }
    if (dtype == (sizeof(A) == 8 ? DType::f64 : DType::f32)) {
      const A* p = static_cast<const A*>(data) + begin;
      if (sizeof(T) == sizeof(A) && offset == 0) return p;
      for_units<T>(count, [&](int64_t i, auto part) { hold(room + i, in_lanes(p + i, part) + every<T>(offset)); });
    } else {
      const T* p = static_cast<const T*>(data) + begin;
      for_units<T>(count, [&](int64_t i, auto part) { hold(room + i, load(p + i, part) + every<T>(offset)); });
    }
    return room;
  }

  // Load a unit of f32 columns. Beside a half type the lanes are in its order, and NaNs have the bits that store_pair asks for.
  template <class Part>
  static FASTOPS_INLINE unit_t<T> in_lanes(const A* p, Part part) {
    if constexpr (sizeof(T) == 2) {
      pair<vf32> v;
      if constexpr (__is_same(Part, whole))
        v = load_pair(p);
      else
        v = load_pair_first(p, part.count);
      const vf32 nan = like(vf32{}, __builtin_nan(""));
      return to_lanes_of<T>(pair<vf32>{v.a == v.a ? v.a : nan, v.b == v.b ? v.b : nan});
    } else {
      return load(p, part);
    }
  }
};

// Columns that are widened once for all rows, at most. More would push the rows out of L1.
constexpr int64_t kHeldColumns = 1024;

}  // namespace fastops::FASTOPS_ISA
