#pragma once
// Two vectors of neighbours, for elementwise use: their lanes are in whatever order is cheapest to load and to store, the
// same one for every operand.
#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

template <class V>
struct pair {
  V a, b;
};

// Asks for the cache lines of the pair that is half a page on. The hardware's prefetcher stops at the end of a page, and
// behind long arithmetic too few loads are under way to hide that; where there is none, the loads themselves run ahead.
template <class T>
FASTOPS_INLINE void prefetch_pair(const T* p) {
  constexpr int kAhead = 2048, kBytes = 2 * simd<accumulate_t<T>>::size * sizeof(T), kLine = 64;
  for (int k = 0; k < kBytes; k += kLine) __builtin_prefetch(reinterpret_cast<const char*>(p) + kAhead + k);
}

template <class T>
FASTOPS_INLINE pair<vec_t<T>> load_pair(const T* p) {
  return {load(p), load(p + simd<accumulate_t<T>>::size)};
}
template <class T>
FASTOPS_INLINE void store_pair(T* p, pair<vec_t<T>> v) {
  store(p, v.a);
  store(p + simd<accumulate_t<T>>::size, v.b);
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
// bf16 is the upper half of f32: elements 0, 2, ... and 1, 3, ... need no shuffle.
FASTOPS_INLINE pair<vf32> load_pair(const bf16* p) {
  using S = simd<float>;
  const S::bits u = load_bytes<S::bits>(p);
  return {(vf32)(u << 16), (vf32)(u & 0xffff0000u)};
}
FASTOPS_INLINE void store_pair(bf16* p, pair<vf32> v) {
  using S = simd<float>;
  auto rounded = [](vf32 x) __attribute__((always_inline)) {
    S::bits u = (S::bits)x;
    u += 0x7fffu + ((u >> 16) & 1u);
    return (x != x) ? (S::bits{} + 0x7fc00000u) : u;
  };
  store_bytes(p, (rounded(v.a) >> 16) | (rounded(v.b) & 0xffff0000u));
}
#endif

}  // namespace fastops::FASTOPS_ISA
