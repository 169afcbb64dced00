#pragma once
// Affine parameters, of the type of the rows or f32 beside a half type.
#include "kernels/units.h"

namespace fastops::FASTOPS_ISA {

// weight + offset or bias, as a kernel for T holds them; `missing` where there is none.
template <class T>
struct Parameter {
  using A = accumulate_t<T>;
  const void* data;
  DType dtype;
  A missing, offset;

  // Whether a kernel for a half type can read it where it lies.
  FASTOPS_INLINE bool own() const { return sizeof(T) == 2 && data && dtype != DType::f32 && offset == 0; }
  FASTOPS_INLINE const T* own_at(int64_t begin) const { return static_cast<const T*>(data) + begin; }

  // Elements [begin, begin + count): where they lie, or in `room`.
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

  // For half types in their order, NaNs with the bits that store_pair asks for.
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

}  // namespace fastops::FASTOPS_ISA
