#pragma once
// Stores past the caches, for outputs that would push out more than they are worth.
#include "kernels/units.h"
#include "plan/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

// Inputs of up to so many bytes are taken to be in the caches.
constexpr int64_t kCachedBytes = 8 << 20;

#if defined(__x86_64__)
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {  // p on a multiple of the bytes that are written
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  if constexpr (sizeof(lanes) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), load_bytes<__m128i>(lanes));
#if FASTOPS_VECTOR_BYTES >= 32
  } else if constexpr (sizeof(lanes) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), load_bytes<__m256i>(lanes));
#endif
#if FASTOPS_VECTOR_BYTES >= 64
  } else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), load_bytes<__m512i>(lanes));
#endif
  }
}
FASTOPS_INLINE void end_of_stream() { _mm_sfence(); }
#else
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {
  store(p, whole{}, v);
}
FASTOPS_INLINE void end_of_stream() {}
#endif

// Whether rows of n elements, dense from `output` on, are to be and can be streamed: in whole lines.
template <class T>
FASTOPS_INLINE bool streams(const void* output, int64_t rows, int64_t n) {
  const int64_t bytes = n * int64_t{sizeof(T)};
  return rows * bytes >= plan::cpu::kStreamBytes && bytes % 64 == 0 && reinterpret_cast<uintptr_t>(output) % 64 == 0;
}

template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, whole, unit_t<T> v) {
  if constexpr (Stream)
    stream(p, v);
  else
    store(p, whole{}, v);
}
template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, first part, unit_t<T> v) {
  store(p, part, v);
}

}  // namespace fastops::FASTOPS_ISA
