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

template <bool Which, class T, class F>
struct choice {
  using type = T;
};
template <class T, class F>
struct choice<false, T, F> {
  using type = F;
};
template <bool Which, class T, class F>
using choose = typename choice<Which, T, F>::type;

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
  typedef uint64_t bits __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
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

// ---- u16 <-> u32: GCC 12 makes three times as many instructions of __builtin_convertvector ------------------------

#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
FASTOPS_INLINE simd<float>::bits widen_bits(simd<float>::half_bits h) {
  return (simd<float>::bits)_mm512_maskz_cvtepu16_epi32(kAllLanes, (__m256i)h);
}
// Lanes below 2^16.
FASTOPS_INLINE simd<float>::half_bits narrow_bits(simd<float>::bits w) {
  return (simd<float>::half_bits)_mm512_maskz_cvtepi32_epi16(kAllLanes, (__m512i)w);
}
#elif defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
FASTOPS_INLINE simd<float>::bits widen_bits(simd<float>::half_bits h) {
  return (simd<float>::bits)_mm256_cvtepu16_epi32((__m128i)h);
}
FASTOPS_INLINE simd<float>::half_bits narrow_bits(simd<float>::bits w) {
  const __m256i v = (__m256i)w;
  return (simd<float>::half_bits)_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
#else
FASTOPS_INLINE simd<float>::bits widen_bits(simd<float>::half_bits h) {
  return __builtin_convertvector(h, simd<float>::bits);
}
FASTOPS_INLINE simd<float>::half_bits narrow_bits(simd<float>::bits w) {
  return __builtin_convertvector(w, simd<float>::half_bits);
}
#endif

// ---- load and store, converting ----------------------------------------------------------------------------------

FASTOPS_INLINE vf32 load(const float* p) { return load_bytes<vf32>(p); }
FASTOPS_INLINE vf64 load(const double* p) { return load_bytes<vf64>(p); }
FASTOPS_INLINE vf32 load(const f16* p) { return widen(load_bytes<simd<float>::half_bits>(p)); }
FASTOPS_INLINE vf32 load(const bf16* p) { return (vf32)(widen_bits(load_bytes<simd<float>::half_bits>(p)) << 16); }

FASTOPS_INLINE void store(float* p, vf32 v) { store_bytes(p, v); }
FASTOPS_INLINE void store(double* p, vf64 v) { store_bytes(p, v); }
FASTOPS_INLINE void store(f16* p, vf32 v) { store_bytes(p, narrow(v)); }
FASTOPS_INLINE void store(bf16* p, vf32 v) {
  using S = simd<float>;
  S::bits u = (S::bits)v;
  S::bits rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  rounded = (v != v) ? (S::bits{} + 0x7fc0u) : rounded;
  store_bytes(p, narrow_bits(rounded));
}

template <class T>
using vec_t = typename simd<accumulate_t<T>>::vec;

// ---- the first lanes of a vector ---------------------------------------------------------------------------------

// Vectors of 16 bytes by two overlapping pieces, since a loop over elements, or a call of memcpy, costs more than a
// short row. `bytes` is in [0, 16) and even.
typedef uint64_t two_words __attribute__((vector_size(16)));

template <class U>
FASTOPS_INLINE uint64_t load_word(const char* p) {
  return load_bytes<U>(p);
}

FASTOPS_INLINE two_words load_first_bytes(const void* from, int64_t bytes) {
  const char* p = static_cast<const char*>(from);
  if (bytes >= 8) {
    const int64_t half = 4 * (16 - bytes);  // two shifts, for one by 64 bits is undefined
    return two_words{load_word<uint64_t>(p), load_word<uint64_t>(p + bytes - 8) >> half >> half};
  }
  if (bytes >= 4) return two_words{load_word<uint32_t>(p) | load_word<uint32_t>(p + bytes - 4) << 8 * (bytes - 4), 0};
  if (bytes >= 2) return two_words{load_word<uint16_t>(p) | load_word<uint16_t>(p + bytes - 2) << 8 * (bytes - 2), 0};
  return two_words{};
}

FASTOPS_INLINE void store_first_bytes(void* to, int64_t bytes, two_words v) {
  char* p = static_cast<char*>(to);
  const uint64_t low = v[0], high = v[1];
  if (bytes >= 8) {
    const int64_t half = 4 * (16 - bytes);
    store_bytes(p, low);
    // The last 8 of the bytes: the end of `low`, then the beginning of `high`.
    store_bytes(p + bytes - 8, low >> 8 * (bytes - 8) | high << half << half);
  } else if (bytes >= 4) {
    store_bytes(p, static_cast<uint32_t>(low));
    store_bytes(p + bytes - 4, static_cast<uint32_t>(low >> 8 * (bytes - 4)));
  } else if (bytes >= 2) {
    store_bytes(p, static_cast<uint16_t>(low));
    store_bytes(p + bytes - 2, static_cast<uint16_t>(low >> 8 * (bytes - 2)));
  }
}

// `Bytes` bytes of memory, of which the first `bytes`, less than all, are there; the others are zero.
template <int Bytes>
struct raw;

template <int Bytes>
struct raw_halves {
  typedef char vec __attribute__((vector_size(Bytes)));
  static FASTOPS_INLINE vec load_first(const char* p, int64_t bytes) {
    if constexpr (Bytes == 8) {
      const two_words words = load_first_bytes(p, bytes);
      vec v;
      __builtin_memcpy(&v, &words, Bytes);
      return v;
    } else if constexpr (Bytes == 16) {
      return (vec)load_first_bytes(p, bytes);
    } else {
      using half = raw<Bytes / 2>;
      typename half::vec parts[2] = {};
      if (bytes >= Bytes / 2) {
        __builtin_memcpy(&parts[0], p, Bytes / 2);
        parts[1] = half::load_first(p + Bytes / 2, bytes - Bytes / 2);
      } else {
        parts[0] = half::load_first(p, bytes);
      }
      vec v;
      __builtin_memcpy(&v, parts, Bytes);
      return v;
    }
  }
  static FASTOPS_INLINE void store_first(char* p, int64_t bytes, vec v) {
    if constexpr (Bytes == 8) {
      two_words words{};
      __builtin_memcpy(&words, &v, 8);
      store_first_bytes(p, bytes, words);
    } else if constexpr (Bytes == 16) {
      store_first_bytes(p, bytes, (two_words)v);
    } else {
      using half = raw<Bytes / 2>;
      typename half::vec parts[2];
      __builtin_memcpy(parts, &v, Bytes);
      if (bytes >= Bytes / 2) {
        __builtin_memcpy(p, &parts[0], Bytes / 2);
        half::store_first(p + Bytes / 2, bytes - Bytes / 2, parts[1]);
      } else {
        half::store_first(p, bytes, parts[0]);
      }
    }
  }
};
template <int Bytes>
struct raw : raw_halves<Bytes> {};

#if defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
template <>
struct raw<32> : raw_halves<32> {  // f32 and f64; a masked store is slow on many CPUs
  static FASTOPS_INLINE vec load_first(const char* p, int64_t bytes) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(bytes / 4)), lanes);
    return (vec)_mm256_maskload_ps(reinterpret_cast<const float*>(p), mask);
  }
};
#elif defined(__AVX512BW__) && defined(__AVX512VL__) && FASTOPS_VECTOR_BYTES == 64
template <>
struct raw<64> {
  typedef char vec __attribute__((vector_size(64)));
  static FASTOPS_INLINE __mmask32 mask(int64_t bytes) { return (__mmask32)((1u << (bytes / 2)) - 1u); }
  static FASTOPS_INLINE vec load_first(const char* p, int64_t bytes) {
    return (vec)_mm512_maskz_loadu_epi16(mask(bytes), p);
  }
  static FASTOPS_INLINE void store_first(char* p, int64_t bytes, vec v) {
    _mm512_mask_storeu_epi16(p, mask(bytes), (__m512i)v);
  }
};
template <>
struct raw<32> {  // a vector of the half types
  typedef char vec __attribute__((vector_size(32)));
  static FASTOPS_INLINE __mmask16 mask(int64_t bytes) { return (__mmask16)((1u << (bytes / 2)) - 1u); }
  static FASTOPS_INLINE vec load_first(const char* p, int64_t bytes) {
    return (vec)_mm256_maskz_loadu_epi16(mask(bytes), p);
  }
  static FASTOPS_INLINE void store_first(char* p, int64_t bytes, vec v) {
    _mm256_mask_storeu_epi16(p, mask(bytes), (__m256i)v);
  }
};
#endif

// The first n lanes, fewer than all; the others are zero.
template <class T>
FASTOPS_INLINE vec_t<T> load_first(const T* p, int64_t n) {
  constexpr int W = simd<accumulate_t<T>>::size;
  T lanes[W];
  const auto bytes = raw<W * sizeof(T)>::load_first(reinterpret_cast<const char*>(p), n * int64_t{sizeof(T)});
  __builtin_memcpy(lanes, &bytes, sizeof(lanes));
  return load(lanes);
}

template <class T>
FASTOPS_INLINE void store_first(T* p, int64_t n, vec_t<T> v) {
  constexpr int W = simd<accumulate_t<T>>::size;
  T lanes[W];
  store(lanes, v);
  typename raw<W * sizeof(T)>::vec bytes;
  __builtin_memcpy(&bytes, lanes, sizeof(lanes));
  raw<W * sizeof(T)>::store_first(reinterpret_cast<char*>(p), n * int64_t{sizeof(T)}, bytes);
}

// One element.
template <class T>
FASTOPS_INLINE accumulate_t<T> value(const T* p) {
  if constexpr (sizeof(T) == 2)
    return load_first(p, 1)[0];
  else
    return *p;
}

FASTOPS_INLINE float root(float a) { return __builtin_sqrtf(a); }
FASTOPS_INLINE double root(double a) { return __builtin_sqrt(a); }
template <class V>
FASTOPS_INLINE V root_of_each(V v) {
  for (int k = 0; k < static_cast<int>(sizeof(V) / sizeof(v[0])); ++k) v[k] = root(v[k]);
  return v;
}
FASTOPS_INLINE vf32 root(vf32 v) { return root_of_each(v); }
FASTOPS_INLINE vf64 root(vf64 v) { return root_of_each(v); }

// A whole vector, or the first `count` lanes at the end of a row.
template <class T>
FASTOPS_INLINE vec_t<T> load_some(const T* p, int64_t count) {
  return count == simd<accumulate_t<T>>::size ? load(p) : load_first(p, count);
}

template <class T>
FASTOPS_INLINE void store_some(T* p, int64_t count, vec_t<T> v) {
  count == simd<accumulate_t<T>>::size ? store(p, v) : store_first(p, count, v);
}

// 0, 1, 2, ... in integers as wide as the lanes.
template <class V>
FASTOPS_INLINE auto lane_numbers() {
  auto lanes = V{} == V{};
  constexpr int n = sizeof(V) / sizeof(lanes[0]);
  for (int k = 0; k < n; ++k) lanes[k] = k;
  return lanes;
}

// v in the first `count` lanes, 0 in the others.
template <class V>
FASTOPS_INLINE V keep_first(V v, int64_t count) {
  const auto lanes = lane_numbers<V>();
  return lanes < lanes * 0 + static_cast<decltype(lanes[0] + 0)>(count) ? v : V{};
}

// a - 0 is a, -0 too, so that the compiler drops it; 0 + a it would compute, for -0 becomes 0.
template <class A>
FASTOPS_INLINE typename simd<A>::vec splat(A a) {
  return a - typename simd<A>::vec{};
}

// `value` in every lane, rounded to the lanes' type.
template <class V>
FASTOPS_INLINE V like(V, double value) {
  return splat(static_cast<decltype(V{}[0] + V{}[0])>(value));
}

FASTOPS_INLINE float like(float, double value) { return static_cast<float>(value); }
FASTOPS_INLINE double like(double, double value) { return value; }

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

// ---- sums of lanes, and greatest lanes ---------------------------------------------------------------------------

template <int... I>
struct indices {};
template <int N, int... I>
struct make_indices : make_indices<N - 1, N - 1, I...> {};
template <int... I>
struct make_indices<0, I...> {
  using type = indices<I...>;
};

// a and b are Groups groups of lanes each. Of all groups, in order, the first halves (Half 0) or the second (Half 1).
template <int Lanes, int Groups, int Half>
constexpr int half_group(int lane) {
  const int group = Lanes / Groups, k = lane / (group / 2);
  return k / Groups * Lanes + k % Groups * group + Half * (group / 2) + lane % (group / 2);
}

template <int Groups, class F, class V, int... I>
FASTOPS_INLINE V join_halves(F join, V a, V b, indices<I...>) {
  constexpr int n = sizeof...(I);
  return join(__builtin_shufflevector(a, b, half_group<n, Groups, 0>(I)...),
              __builtin_shufflevector(a, b, half_group<n, Groups, 1>(I)...));
}

// Lane k of the result is what the lanes of v[k] come to, joined in a fixed tree: halves with each other. Overwrites v.
template <int Groups = 1, class F, class V>
FASTOPS_INLINE V join_lanes_of_each(F join, V* v) {
  constexpr int n = sizeof(V) / sizeof(V{}[0]);
  if constexpr (Groups == n) {
    return v[0];
  } else {
    for (int k = 0; k < n / Groups / 2; ++k)
      v[k] = join_halves<Groups>(join, v[2 * k], v[2 * k + 1], typename make_indices<n>::type{});
    return join_lanes_of_each<2 * Groups>(join, v);
  }
}

// The same tree for one vector.
template <int Groups = 1, class F, class V>
FASTOPS_INLINE auto join_lanes(F join, V v) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
  if constexpr (Groups == n)
    return v[0];
  else
    return join_lanes<2 * Groups>(join, join_halves<Groups>(join, v, v, typename make_indices<n>::type{}));
}

struct plus {
  template <class V>
  FASTOPS_INLINE V operator()(V a, V b) const {
    return a + b;
  }
};
template <class V>
FASTOPS_INLINE auto sum_lanes(V v) {
  return join_lanes(plus{}, v);
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

}  // namespace fastops::FASTOPS_ISA
