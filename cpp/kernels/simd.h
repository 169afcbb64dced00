#pragma once
// Vectors of FASTOPS_VECTOR_BYTES bytes on the compiler's vector types: the same source is SSE, AVX2, AVX-512 or NEON.
// Rules of every file compiled per ISA level: no Torch, no std containers or algorithms, no statics. A weak std:: symbol
// compiled here could be the copy that the linker keeps for the whole library, and kill older CPUs.
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "core/dtype.h"

namespace fastops::FASTOPS_ISA {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

// What a kernel computes in: float for the half types.
template <class T>
struct accumulate {
  using type = float;
};
template <>
struct accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename accumulate<T>::type;

template <class A>
struct simd;

template <>
struct simd<float> {
  static constexpr int size = FASTOPS_VECTOR_BYTES / 4;
  typedef float vec __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
  typedef int32_t ints __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
  typedef uint32_t bits __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
  typedef uint16_t half_bits __attribute__((vector_size(FASTOPS_VECTOR_BYTES / 2)));
};

template <>
struct simd<double> {
  static constexpr int size = FASTOPS_VECTOR_BYTES / 8;
  typedef double vec __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
};

using vf32 = simd<float>::vec;
using vf64 = simd<double>::vec;

#define FASTOPS_INLINE inline __attribute__((always_inline))

template <class V>
FASTOPS_INLINE V load_bytes(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(V));
  return v;
}

template <class V>
FASTOPS_INLINE void store_bytes(void* p, V v) {
  __builtin_memcpy(p, &v, sizeof(V));
}

// ---- f16 <-> f32 -------------------------------------------------------------------------------------------------

#if defined(__F16C__) && FASTOPS_VECTOR_BYTES == 32
FASTOPS_INLINE vf32 widen(simd<float>::half_bits h) { return (vf32)_mm256_cvtph_ps((__m128i)h); }
FASTOPS_INLINE simd<float>::half_bits narrow(vf32 v) {
  return (simd<float>::half_bits)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT);
}
#elif defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
// The masked forms, since the plain ones read an uninitialised vector inside GCC 12's headers, which then warns.
constexpr __mmask16 kAllLanes = 0xffff;
FASTOPS_INLINE vf32 widen(simd<float>::half_bits h) { return (vf32)_mm512_maskz_cvtph_ps(kAllLanes, (__m256i)h); }
FASTOPS_INLINE simd<float>::half_bits narrow(vf32 v) {
  return (simd<float>::half_bits)_mm512_maskz_cvtps_ph(kAllLanes, (__m512)v, _MM_FROUND_TO_NEAREST_INT);
}
#else
FASTOPS_INLINE vf32 widen(simd<float>::half_bits h) {
  using S = simd<float>;
  S::bits w = __builtin_convertvector(h, S::bits);
  S::bits sign = (w & 0x8000u) << 16;
  S::bits magnitude = (w & 0x7fffu) << 13;
  S::bits bits = magnitude + (112u << 23);  // the difference of the exponents' biases
  // Denormals through a normal number, so that they survive a flush-denormals mode.
  S::bits denormal = (S::bits)((vf32)(magnitude | 0x38800000u) - 0x1p-14f);
  bits = ((w & 0x7c00u) == 0u) ? denormal : bits;
  bits = ((w & 0x7c00u) == 0x7c00u) ? (magnitude | 0x7f800000u) : bits;
  return (vf32)(bits | sign);
}

FASTOPS_INLINE simd<float>::half_bits narrow(vf32 v) {
  using S = simd<float>;
  S::bits u = (S::bits)v;
  S::bits sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  // Normal: rebias, round half to even at bit 13. Denormal: adding 0.5 lets the FPU round at the right bit.
  S::bits normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
  S::bits denormal = (S::bits)((vf32)u + 0.5f) - 0x3f000000u;
  S::bits h = (u < 0x38800000u) ? denormal : normal;
  h = (u >= 0x477ff000u) ? (S::bits{} + 0x7c00u) : h;
  h = (u > 0x7f800000u) ? (S::bits{} + 0x7e00u) : h;
  return __builtin_convertvector(h | sign, S::half_bits);
}
#endif

// ---- load and store, converting ----------------------------------------------------------------------------------

FASTOPS_INLINE vf32 load(const float* p) { return load_bytes<vf32>(p); }
FASTOPS_INLINE vf64 load(const double* p) { return load_bytes<vf64>(p); }
FASTOPS_INLINE vf32 load(const f16* p) { return widen(load_bytes<simd<float>::half_bits>(p)); }
FASTOPS_INLINE vf32 load(const bf16* p) {
  using S = simd<float>;
  return (vf32)(__builtin_convertvector(load_bytes<S::half_bits>(p), S::bits) << 16);
}

FASTOPS_INLINE void store(float* p, vf32 v) { store_bytes(p, v); }
FASTOPS_INLINE void store(double* p, vf64 v) { store_bytes(p, v); }
FASTOPS_INLINE void store(f16* p, vf32 v) { store_bytes(p, narrow(v)); }
FASTOPS_INLINE void store(bf16* p, vf32 v) {
  using S = simd<float>;
  S::bits u = (S::bits)v;
  S::bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  rounded = (v != v) ? (S::bits{} + 0x7fc0u) : rounded;
  store_bytes(p, __builtin_convertvector(rounded, S::half_bits));
}

template <class T>
using vec_t = typename simd<accumulate_t<T>>::vec;

// The first n lanes; the others are zero. Loops, not memcpy, whose call costs more than a short row.
template <class T>
FASTOPS_INLINE vec_t<T> load_first(const T* p, int64_t n) {
  T lanes[simd<accumulate_t<T>>::size] = {};
  for (int64_t k = 0; k < n; ++k) lanes[k] = p[k];
  return load(lanes);
}

template <class T>
FASTOPS_INLINE void store_first(T* p, int64_t n, vec_t<T> v) {
  T lanes[simd<accumulate_t<T>>::size];
  store(lanes, v);
  for (int64_t k = 0; k < n; ++k) p[k] = lanes[k];
}

// A whole vector, or the first `count` lanes at the end of a row.
template <class T>
FASTOPS_INLINE vec_t<T> load_some(const T* p, int64_t count) {
  return count == simd<accumulate_t<T>>::size ? load(p) : load_first(p, count);
}

template <class T>
FASTOPS_INLINE void store_some(T* p, int64_t count, vec_t<T> v) {
  count == simd<accumulate_t<T>>::size ? store(p, v) : store_first(p, count, v);
}

// v in the first `count` lanes, 0 in the others.
template <class V>
FASTOPS_INLINE V keep_first(V v, int64_t count) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  for (int k = 0; count < n && k < n; ++k)
    if (k >= count) v[k] = 0;
  return v;
}

template <class A>
FASTOPS_INLINE typename simd<A>::vec splat(A a) {
  return typename simd<A>::vec{} + a;
}

// `value` in every lane, rounded to the lanes' type.
template <class V>
FASTOPS_INLINE V like(V, double value) {
  return V{} + static_cast<decltype(V{}[0] + V{}[0])>(value);
}

// a·b rounded, never fused into an addition that follows.
template <class V>
FASTOPS_INLINE V product(V a, V b) {
  V p = a * b;
#if defined(__x86_64__)
  __asm__("" : "+v"(p));
#elif defined(__aarch64__)
  __asm__("" : "+w"(p));
#endif
  return p;
}

// Lanes added in a fixed tree.
template <class V>
FASTOPS_INLINE auto sum_lanes(V v) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  auto lanes = v;
  for (int half = n / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0];
}

// ---- choice of type at run time ----------------------------------------------------------------------------------

template <class T>
struct tag {
  using type = T;
};

template <class F>
FASTOPS_INLINE void dispatch(DType dtype, F f) {
  switch (dtype) {
    case DType::f16: return f(tag<f16>{});
    case DType::bf16: return f(tag<bf16>{});
    case DType::f32: return f(tag<float>{});
    case DType::f64: return f(tag<double>{});
  }
}

// The type of affine parameters: the input's own, or f32 beside a half-precision input.
template <class T, class F>
FASTOPS_INLINE void dispatch_parameter(DType parameter, F f) {
  if constexpr (sizeof(T) == 2) {
    if (parameter == DType::f32) return f(tag<float>{});
  }
  return f(tag<T>{});
}

}  // namespace fastops::FASTOPS_ISA
