#pragma once
// What a loop takes at a time: a vector, of the half types a pair; whole, or the first elements at the end of a row.
#include "kernels/pairs.h"

namespace fastops::FASTOPS_ISA {

// A whole vector, or the first lanes at the end of a row.
struct whole {};
struct first {
  int64_t count;
};

template <class T>
struct unit {
  using type = choose<sizeof(T) == 2, pair<vec_t<T>>, vec_t<T>>;
};
template <class T>
using unit_t = typename unit<T>::type;
template <class T>
constexpr int64_t kUnit = sizeof(unit_t<T>) / sizeof(accumulate_t<T>);

template <class T>
FASTOPS_INLINE unit_t<T> load(const T* p, whole) {
  if constexpr (sizeof(T) == 2)
    return load_pair(p);
  else
    return load(p);
}
template <class T>
FASTOPS_INLINE unit_t<T> load(const T* p, first part) {
  if constexpr (sizeof(T) == 2)
    return load_pair_first(p, part.count);
  else
    return load_first(p, part.count);
}
template <class T>
FASTOPS_INLINE void store(T* p, whole, unit_t<T> v) {
  if constexpr (sizeof(T) == 2)
    store_pair(p, v);
  else
    store(p, v);
}
template <class T>
FASTOPS_INLINE void store(T* p, first part, unit_t<T> v) {
  if constexpr (sizeof(T) == 2)
    store_pair_first(p, part.count, v);
  else
    store_first(p, part.count, v);
}
template <class T>
FASTOPS_INLINE unit_t<T> keep(unit_t<T> v, whole) {
  return v;
}
template <class T>
FASTOPS_INLINE unit_t<T> keep(unit_t<T> v, first part) {
  if constexpr (sizeof(T) == 2)
    return keep_pair_first<T>(v, part.count);
  else
    return keep_first(v, part.count);
}

// Numbers of the type that is computed in, in whole units and in a unit's own lanes where T is a half type; elsewhere as
// they lie in a tensor.
template <class T, class Part>
FASTOPS_INLINE unit_t<T> load_held(const accumulate_t<T>* p, Part part) {
  if constexpr (sizeof(T) == 2)
    return {load(p), load(p + simd<float>::size)};
  else
    return load(p, part);
}
// A row's or a parameter's: held, or of T's own type as they lie.
template <class T, class P, class Part>
FASTOPS_INLINE unit_t<T> load_as(const P* p, Part part) {
  if constexpr (sizeof(P) == sizeof(T))
    return load(p, part);
  else
    return load_held<T>(p, part);
}
template <class A, class V>
FASTOPS_INLINE void hold(A* p, pair<V> v) {
  store(p, v.a);
  store(p + sizeof(V) / sizeof(A), v.b);
}
template <class A>
FASTOPS_INLINE void hold(A* p, vec_t<A> v) {
  store(p, v);
}
// `part` of what is held, where only that is to be written.
template <class T, class Part>
FASTOPS_INLINE void hold_part(accumulate_t<T>* p, Part part, unit_t<T> v) {
  if constexpr (sizeof(T) == 2)
    hold(p, v);
  else
    store(p, part, v);
}

// What is held, in the order of the elements.
template <class T>
FASTOPS_INLINE void put_in_order(accumulate_t<T>* held, int64_t count) {
  if constexpr (kAlternates<T>)
    for (int64_t i = 0; i < count; i += kUnit<T>)
      store_pair(held + i, from_lanes_of<T>(load_held<T>(held + i, whole{})));
}

// The same number in every lane.
template <class T>
FASTOPS_INLINE unit_t<T> every(accumulate_t<T> a) {
  const vec_t<T> v = splat(a);
  if constexpr (sizeof(T) == 2)
    return {v, v};
  else
    return v;
}

// f of each vector of a unit, or of each vector of one and its fellow of another.
template <class F, class V>
FASTOPS_INLINE V of_each(F f, V v) {
  return f(v);
}
template <class F, class V>
FASTOPS_INLINE pair<V> of_each(F f, pair<V> v) {
  return {f(v.a), f(v.b)};
}
template <class F, class V>
FASTOPS_INLINE V of_each(F f, V x, V y) {
  return f(x, y);
}
template <class F, class V>
FASTOPS_INLINE pair<V> of_each(F f, pair<V> x, pair<V> y) {
  return {f(x.a, y.a), f(x.b, y.b)};
}

template <class V>
FASTOPS_INLINE V fold(V v) {
  return v;
}
template <class V>
FASTOPS_INLINE V fold(pair<V> v) {
  return v.a + v.b;
}

// f(i, part) for the units of n elements.
template <class T, class F>
FASTOPS_INLINE void for_units(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kUnit<T> <= n; i += kUnit<T>) f(i, whole{});
  if (i < n) f(i, first{n - i});
}

}  // namespace fastops::FASTOPS_ISA
