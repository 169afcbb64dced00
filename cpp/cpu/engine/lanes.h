#pragma once
// What the row engine does with units beside their arithmetic: fill what lies behind a row's end, find the greatest
// element, store as another type.
#include "cpu/engine/stream.h"
#include "kernels/math.h"
#include "kernels/units.h"

namespace fastops::FASTOPS_ISA {

struct greater_of {
  template <class V>
  FASTOPS_INLINE V operator()(V a, V b) const {
    return of_each([](auto x, auto y) { return greater(x, y); }, a, b);
  }
};

// Return v rounded to T, as a store followed by a load rounds it.
template <class T>
FASTOPS_INLINE unit_t<T> rounded(unit_t<T> v) {
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  return load(lanes, whole{});
}

// v in the first lanes, `other` in those behind the end.
template <class V>
FASTOPS_INLINE V fill_first(V v, int64_t count, V other) {
  const auto lanes = lane_numbers<V>();
  return lanes < lanes * 0 + static_cast<decltype(lanes[0] + 0)>(count) ? v : other;
}
template <class T>
FASTOPS_INLINE unit_t<T> fill(unit_t<T> v, whole, unit_t<T>) {
  return v;
}
template <class T>
FASTOPS_INLINE unit_t<T> fill(unit_t<T> v, first part, unit_t<T> other) {
  constexpr int64_t W = simd<accumulate_t<T>>::size;
  if constexpr (sizeof(T) != 2)
    return fill_first(v, part.count, other);
  else if constexpr (kAlternates<T>)
    return {fill_first(v.a, (part.count + 1) / 2, other.a), fill_first(v.b, part.count / 2, other.b)};
  else
    return {fill_first(v.a, part.count, other.a), fill_first(v.b, part.count - W, other.b)};
}

template <class T>
FASTOPS_INLINE unit_t<T> least() {
  return every<T>(-static_cast<accumulate_t<T>>(__builtin_inf()));
}
template <class V>
FASTOPS_INLINE V fold_greatest(V v) {
  return v;
}
template <class V>
FASTOPS_INLINE V fold_greatest(pair<V> v) {
  return greater(v.a, v.b);
}

// The greatest of f(i, part) in each lane, over the units of n elements.
template <class T, class F>
FASTOPS_INLINE vec_t<T> greatest_of_units(int64_t n, F f) {
  using U = unit_t<T>;
  constexpr int64_t N = kUnit<T>;
  constexpr int kChains = sizeof(T) == 2 ? 2 : 4;
  U greatest = least<T>();
  int64_t i = 0;
  if (n >= kChains * N) {
    U chains[kChains];
    for (int c = 0; c < kChains; ++c) chains[c] = least<T>();
    for (; i + kChains * N <= n; i += kChains * N) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) chains[c] = greater_of{}(chains[c], f(i + c * N, whole{}));
    }
    for (int c = 0; c < kChains; ++c) greatest = greater_of{}(greatest, chains[c]);
  }
  for (; i + N <= n; i += N) greatest = greater_of{}(greatest, f(i, whole{}));
  if (i < n) greatest = greater_of{}(greatest, fill<T>(f(i, first{n - i}), first{n - i}, least<T>()));
  return fold_greatest(greatest);
}

// A unit of T's lanes as elements of R: T, or f32 of a half type, or a half type of f32.
template <bool Stream, class T, class R, class Part>
FASTOPS_INLINE void put_as(R* p, Part part, unit_t<T> v) {
  if constexpr (__is_same(T, R)) {
    put<Stream>(p, part, v);
  } else if constexpr (sizeof(T) == 2) {
    const unit_t<T> ordered = from_lanes_of<T>(v);
    if constexpr (__is_same(Part, whole)) {
      put<Stream>(p, part, ordered.a);
      put<Stream>(p + simd<R>::size, part, ordered.b);
    } else {
      store_pair_first(p, part.count, ordered);
    }
  } else if constexpr (__is_same(Part, whole)) {
    store(p, v);
  } else {
    store_first(p, part.count, v);
  }
}

}  // namespace fastops::FASTOPS_ISA
