#pragma once
// Two vectors of neighbours, for elementwise use: their lanes are in whatever order is cheapest to load and to store, the
// same one for every operand.
#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

template <class V>
struct pair {
  V a, b;
};

// Asks for the cache lines of the N elements that are half a page on, or back. The hardware's prefetcher stops at the end of a
// page, and behind long arithmetic too few loads are under way to hide that; where there is none, the loads themselves run
// ahead.
template <int N, class T>
FASTOPS_INLINE void prefetch_ahead(const T* p, int64_t direction = 1) {
  constexpr int kAhead = 2048, kBytes = N * sizeof(T), kLine = 64;
  for (int k = 0; k < kBytes; k += kLine) __builtin_prefetch(reinterpret_cast<const char*>(p) + direction * kAhead + k);
}

template <class V>
FASTOPS_INLINE pair<V> operator+(pair<V> x, pair<V> y) {
  return {x.a + y.a, x.b + y.b};
}
template <class V>
FASTOPS_INLINE pair<V> operator-(pair<V> x, pair<V> y) {
  return {x.a - y.a, x.b - y.b};
}
template <class V>
FASTOPS_INLINE pair<V> operator*(pair<V> x, pair<V> y) {
  return {x.a * y.a, x.b * y.b};
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

template <class V>
FASTOPS_INLINE pair<V> product(pair<V> x, pair<V> y) {
  return {product(x.a, y.a), product(x.b, y.b)};
}

// A number; of a NaN the bits that store_pair asks for.
template <class A>
FASTOPS_INLINE A canonical(A x) {
  return x == x ? x : static_cast<A>(__builtin_nan(""));
}

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
// bf16 is the upper half of f32: elements 0, 2, ... and 1, 3, ... need no shuffle.
template <class T>
constexpr bool kAlternates = __is_same(T, bf16);
FASTOPS_INLINE pair<vf32> load_pair(const bf16* p) {
  using S = simd<float>;
  const S::bits u = load_bytes<S::bits>(p);
  return {(vf32)(u << 16), (vf32)(u & 0xffff0000u)};
}
// Rounded to nearest, ties to even, in the upper half. NaNs have only bits there, as those do that come from bf16, from numbers
// (core/tensor.h), from f32 parameters (columns.h), from canonical() or that the CPU makes: rounding leaves them alone.
FASTOPS_INLINE simd<float>::bits round_to_bf16(vf32 v) {
  using S = simd<float>;
  const S::bits u = (S::bits)v;
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  const __m512i below_half = (__m512i)(u + 0x7fffu);
  const __mmask16 odd = _mm512_test_epi32_mask((__m512i)u, _mm512_set1_epi32(0x10000));
  return (S::bits)_mm512_mask_sub_epi32(below_half, odd, below_half, _mm512_set1_epi32(-1));
#else
  return u + (0x7fffu + ((u >> 16) & 1u));
#endif
}
FASTOPS_INLINE void store_pair(bf16* p, pair<vf32> v) {
  store_bytes(p, (round_to_bf16(v.a) >> 16) | (round_to_bf16(v.b) & 0xffff0000u));
}
#else
template <class T>
constexpr bool kAlternates = false;
#endif

template <int Step, int Lanes>
constexpr int alternating(int from, int lane) {  // Step 2: every second lane; Step 1: of each vector in turn
  return Step == 2 ? from + 2 * lane : from * Lanes / 2 + lane / 2 + lane % 2 * Lanes;
}
template <int Step, class V, int... I>
FASTOPS_INLINE pair<V> shuffled(pair<V> v, indices<I...>) {
  constexpr int n = sizeof...(I);
  return {__builtin_shufflevector(v.a, v.b, alternating<Step, n>(0, I)...),
          __builtin_shufflevector(v.a, v.b, alternating<Step, n>(1, I)...)};
}

// From the order of the elements to the lanes of load_pair(const T*), and back.
template <class T, class V>
FASTOPS_INLINE pair<V> to_lanes_of(pair<V> v) {
  if constexpr (kAlternates<T>) return shuffled<2>(v, typename make_indices<sizeof(V) / sizeof(v.a[0])>::type{});
  return v;
}
template <class T, class V>
FASTOPS_INLINE pair<V> from_lanes_of(pair<V> v) {
  if constexpr (kAlternates<T>) return shuffled<1>(v, typename make_indices<sizeof(V) / sizeof(v.a[0])>::type{});
  return v;
}

// The first n elements, fewer than all; the others are zero.
#if defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
struct raw_pair_of_halves : raw_halves<32> {
  static FASTOPS_INLINE vec load_first(const char* p, int64_t bytes) {  // words, and a last element if there is one
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                  words = _mm256_set1_epi32(static_cast<int>(bytes / 4));
    __m256i v = _mm256_maskload_epi32(reinterpret_cast<const int*>(p), _mm256_cmpgt_epi32(words, lanes));
    if (bytes % 4)
      v = _mm256_or_si256(v, _mm256_and_si256(_mm256_set1_epi32(load_bytes<uint16_t>(p + bytes - 2)),
                                              _mm256_cmpeq_epi32(words, lanes)));
    return (vec)v;
  }
};
#else
struct raw_pair_of_halves;
#endif
template <class T>
using raw_pair = choose<sizeof(T) == 2 && FASTOPS_VECTOR_BYTES == 32, raw_pair_of_halves,
                        raw<2 * simd<accumulate_t<T>>::size* static_cast<int>(sizeof(T))>>;
// With masks a vector at a time where both are in order: their bytes need not be put together, which waits for both.
template <class T>
constexpr bool kApart = !kAlternates<T> && FASTOPS_VECTOR_BYTES == 64;
template <class T>
FASTOPS_INLINE pair<vec_t<T>> load_pair_first(const T* p, int64_t n) {
  if constexpr (kApart<T>) {
    constexpr int64_t W = simd<accumulate_t<T>>::size;
    if (n <= W) return {load_some(p, n), vec_t<T>{}};
    return {load(p), load_first(p + W, n - W)};
  }
  T lanes[2 * simd<accumulate_t<T>>::size];
  const auto bytes = raw_pair<T>::load_first(reinterpret_cast<const char*>(p), n * int64_t{sizeof(T)});
  __builtin_memcpy(lanes, &bytes, sizeof(lanes));
  return load_pair(lanes);
}
template <class T>
FASTOPS_INLINE void store_pair_first(T* p, int64_t n, pair<vec_t<T>> v) {
  if constexpr (kApart<T>) {
    constexpr int64_t W = simd<accumulate_t<T>>::size;
    if (n <= W) return store_some(p, n, v.a);
    store(p, v.a);
    return store_first(p + W, n - W, v.b);
  }
  T lanes[2 * simd<accumulate_t<T>>::size];
  store_pair(lanes, v);
  typename raw_pair<T>::vec bytes;
  __builtin_memcpy(&bytes, lanes, sizeof(lanes));
  raw_pair<T>::store_first(reinterpret_cast<char*>(p), n * int64_t{sizeof(T)}, bytes);
}
template <class T>
FASTOPS_INLINE pair<vec_t<T>> keep_pair_first(pair<vec_t<T>> v, int64_t n) {
  constexpr int64_t W = simd<accumulate_t<T>>::size;
  if constexpr (kAlternates<T>) return {keep_first(v.a, (n + 1) / 2), keep_first(v.b, n / 2)};
  return {keep_first(v.a, n), keep_first(v.b, n - W)};
}

}  // namespace fastops::FASTOPS_ISA
