#pragma once
// Between lanes of all ones or zeros and one bit a lane, lane k in bit k.
#include "kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

// Unsigned integers as wide as T's elements.
template <int bytes>
struct lanes_of;
template <>
struct lanes_of<2> {
  using lane = uint16_t;
  typedef lane vec __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
};
template <>
struct lanes_of<4> {
  using lane = uint32_t;
  typedef lane vec __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
};
template <>
struct lanes_of<8> {
  using lane = uint64_t;
  typedef lane vec __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
};
template <class T>
using lanes_t = typename lanes_of<sizeof(T)>::vec;
template <class T>
constexpr int kLanes = FASTOPS_VECTOR_BYTES / sizeof(T);

template <class T>
FASTOPS_INLINE uint32_t bits_of(lanes_t<T> lanes) {
#if FASTOPS_VECTOR_BYTES == 64 && defined(__AVX512BW__) && defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 2) return _mm512_movepi16_mask((__m512i)lanes);
  if constexpr (sizeof(T) == 4) return _mm512_movepi32_mask((__m512i)lanes);
  if constexpr (sizeof(T) == 8) return _mm512_movepi64_mask((__m512i)lanes);
#elif FASTOPS_VECTOR_BYTES == 32 && defined(__AVX2__)
  if constexpr (sizeof(T) == 2) {
    const __m256i bytes = _mm256_packs_epi16((__m256i)lanes, _mm256_setzero_si256());
    return _mm256_movemask_epi8(_mm256_permute4x64_epi64(bytes, 0xd8));  // the halves were packed apart
  }
  if constexpr (sizeof(T) == 4) return _mm256_movemask_ps((__m256)lanes);
  if constexpr (sizeof(T) == 8) return _mm256_movemask_pd((__m256d)lanes);
#elif FASTOPS_VECTOR_BYTES == 16 && defined(__SSE2__)
  if constexpr (sizeof(T) == 2) return _mm_movemask_epi8(_mm_packs_epi16((__m128i)lanes, _mm_setzero_si128()));
  if constexpr (sizeof(T) == 4) return _mm_movemask_ps((__m128)lanes);
  if constexpr (sizeof(T) == 8) return _mm_movemask_pd((__m128d)lanes);
#else
  uint32_t bits = 0;
  for (int k = 0; k < kLanes<T>; ++k) bits |= static_cast<uint32_t>(lanes[k] & 1) << k;
  return bits;
#endif
}

// x in the lanes whose bit is set, 0 in the others.
template <class T>
FASTOPS_INLINE lanes_t<T> where_bits(uint32_t bits, lanes_t<T> x) {
#if FASTOPS_VECTOR_BYTES == 64 && defined(__AVX512BW__)
  if constexpr (sizeof(T) == 2) return (lanes_t<T>)_mm512_maskz_mov_epi16(bits, (__m512i)x);
  if constexpr (sizeof(T) == 4) return (lanes_t<T>)_mm512_maskz_mov_epi32(bits, (__m512i)x);
  if constexpr (sizeof(T) == 8) return (lanes_t<T>)_mm512_maskz_mov_epi64(bits, (__m512i)x);
#else
  using V = lanes_t<T>;
  using Lane = typename lanes_of<sizeof(T)>::lane;
  V own{};  // bit k in lane k
  for (int k = 0; k < kLanes<T>; ++k) own[k] = static_cast<Lane>(1u << k);
  const V all = V{} + static_cast<Lane>(bits);
  return x & (V)((all & own) == own);
#endif
}

}  // namespace fastops::FASTOPS_ISA
