#pragma once
// Elementary functions on vectors: f32 and f64's exponential by our own polynomials, the others of f64 lane by lane through
// the C library.
// tests/test_cpu_math.py measures them, through the ops, over the range of f32.
#include "kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

#define FASTOPS_LANEWISE(name, function)                                \
  FASTOPS_INLINE vf64 name(vf64 x) {                                    \
    for (int k = 0; k < simd<double>::size; ++k) x[k] = function(x[k]); \
    return x;                                                           \
  }
FASTOPS_LANEWISE(expm1, __builtin_expm1)
FASTOPS_LANEWISE(tanh, __builtin_tanh)
FASTOPS_LANEWISE(erfc, __builtin_erfc)
FASTOPS_LANEWISE(log, __builtin_log)
#undef FASTOPS_LANEWISE

template <class V>
FASTOPS_INLINE V select(decltype(V{} < V{}) mask, V a, V b) {
  return mask ? a : b;
}

constexpr uint32_t kSign = 0x80000000u;
FASTOPS_INLINE vf32 magnitude(vf32 x) { return (vf32)((simd<float>::bits)x & ~kSign); }
FASTOPS_INLINE vf64 magnitude(vf64 x) { return select(x < 0, -x, x); }
FASTOPS_INLINE vf32 minus_abs(vf32 x) { return (vf32)((simd<float>::bits)x | kSign); }
FASTOPS_INLINE vf64 minus_abs(vf64 x) { return select(x < 0, x, -x); }

// NaN stays NaN. Left to itself, the compiler makes a comparison and a blend of them.
FASTOPS_INLINE vf32 at_least(vf32 x, float bound) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  return (vf32)_mm512_maskz_max_ps(kAllLanes, (__m512)splat(bound), (__m512)x);
#elif defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
  return (vf32)_mm256_max_ps((__m256)splat(bound), (__m256)x);
#else
  return select(x < bound, splat(bound), x);
#endif
}
FASTOPS_INLINE vf32 at_most(vf32 x, float bound) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  return (vf32)_mm512_maskz_min_ps(kAllLanes, (__m512)splat(bound), (__m512)x);
#elif defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
  return (vf32)_mm256_min_ps((__m256)splat(bound), (__m256)x);
#else
  return select(x > bound, splat(bound), x);
#endif
}
FASTOPS_INLINE vf64 at_most(vf64 x, double bound) { return select(x > bound, splat(bound), x); }

// The greater of two; of a NaN and a number either, whichever the CPU's instruction gives.
FASTOPS_INLINE vf32 greater(vf32 a, vf32 b) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  return (vf32)_mm512_maskz_max_ps(kAllLanes, (__m512)a, (__m512)b);
#elif defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
  return (vf32)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
  return (vf32)_mm_max_ps((__m128)a, (__m128)b);
#else
  return select(a > b, a, b);
#endif
}
FASTOPS_INLINE vf64 greater(vf64 a, vf64 b) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  return (vf64)_mm512_maskz_max_pd((__mmask8)0xff, (__m512d)a, (__m512d)b);
#elif defined(__AVX2__) && FASTOPS_VECTOR_BYTES == 32
  return (vf64)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(__SSE2__)
  return (vf64)_mm_max_pd((__m128d)a, (__m128d)b);
#else
  return select(a > b, a, b);
#endif
}

// n / d for 1 <= d <= 8, where nothing overflows.
FASTOPS_INLINE vf32 quotient(vf32 n, vf32 d) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  // A division of 16 lanes takes as long as 32 other operations. 14 bits of 1 / d, then one correction of the quotient.
  vf32 r = (vf32)_mm512_maskz_rcp14_ps(kAllLanes, (__m512)d), q = n * r;
  return q + (n - q * d) * r;
#else
  return n / d;
#endif
}
FASTOPS_INLINE vf64 quotient(vf64 n, vf64 d) { return n / d; }

// x = k·ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^22·ln 2, and 2^(k + Bias - 127) where that is a normal number. Rounding
// by the magic number 1.5·2^23 leaves k's integer in the low bits of the sum, and Bias beside it.
struct reduced {
  vf32 r, power;
};
constexpr float kLog2E = 0x1.715476p0f;
template <int Bias>
FASTOPS_INLINE reduced reduce(vf32 x) {
  constexpr float kShift = 0x1.8p23f + Bias;
  vf32 shifted = x * kLog2E + kShift;
  vf32 k = shifted - kShift;
  vf32 r = (x - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;  // ln 2 in two parts; k times the first is exact
  return {r, (vf32)((simd<float>::bits)shifted << 23)};
}

// (e^r - 1 - r) / r², |r| <= ln 2 / 2, fitted for the least largest error: 2^-27 of e^r and 2^-26 of e^r - 1.
FASTOPS_INLINE vf32 exp_tail(vf32 r) {
  vf32 p = splat(0.0013946450781f);
  p = p * r + 0.0083665838465f;
  p = p * r + 0.0416662804782f;
  p = p * r + 0.1666654348373f;
  p = p * r + 0.5f;
  return p;
}

// 2^r, |r| <= 1/2, to 2^-18.
FASTOPS_INLINE vf32 exp2_short(vf32 r) {
  vf32 p = splat(0.0095828532f);
  p = p * r + 0.0559064259f;
  p = p * r + 0.2402409862f;
  p = p * r + 0.6931241933f;
  p = p * r + 1.0f;
  return p;
}

// 2^64·e^x for -104 <= x <= 43, a normal number; Half: to 2^-16 of it, enough for a half type.
constexpr float kDown = 0x1p-64f;
FASTOPS_INLINE vf32 exp_up(reduced a) { return (1.0f + (a.r + a.r * a.r * exp_tail(a.r))) * a.power; }
template <bool Half>
FASTOPS_INLINE vf32 exp_up(vf32 x) {
  if constexpr (Half) {
    constexpr float kShift = 0x1.8p23f + 127 + 64;  // see reduce
    vf32 shifted = x * kLog2E + kShift;
    return exp2_short(x * kLog2E - (shifted - kShift)) * (vf32)((simd<float>::bits)shifted << 23);
  } else {
    return exp_up(reduce<127 + 64>(x));
  }
}

// e^x for x <= 43, denormal results included, NaN for NaN.
template <bool Half = false>
FASTOPS_INLINE vf32 exp(vf32 x) {
  return exp_up<Half>(at_least(x, -104.0f)) * kDown;
}

// The same in f64, for x <= 43 too: the tail to 2^-58 of e^r, ln 2 in two parts, of which k times the first is exact.
FASTOPS_INLINE vf64 exp(vf64 x) {
  constexpr double kShift = 0x1.8p52 + 1023 + 64;
  x = select(x < -746.0, splat(-746.0), x);
  const vf64 shifted = x * 0x1.71547652b82fep0 + kShift, k = shifted - kShift;
  const vf64 r = (x - k * 0x1.62e42feep-1) - k * 0x1.a39ef35793c76p-33;
  constexpr double kTail[] = {0x1.000000000000cp-1,  0x1.5555555555561p-3,  0x1.555555554ff93p-5,
                              0x1.111111110d5cbp-7,  0x1.6c16c185cabe7p-10, 0x1.a01a01bb07b73p-13,
                              0x1.a0199630f490fp-16, 0x1.71dddf77bf641p-19, 0x1.28b0a6d8ceeafp-22,
                              0x1.af860daf99c11p-26};
  vf64 p = splat(kTail[9]);
  for (int i = 8; i >= 0; --i) p = p * r + kTail[i];
  return (1.0 + (r + r * r * p)) * (vf64)((simd<double>::bits)shifted << 52) * 0x1p-64;
}

// log x for a normal x: of m·2^k with m in [1/√2, √2), log m = f - f²/2 + f³·P(f) for f = m - 1, and k·ln 2 in two
// parts. NaN for NaN. P is fitted for the least largest error, 2^-27 of log m.
FASTOPS_INLINE vf32 log(vf32 x) {
  using S = simd<float>;
  constexpr uint32_t kRootHalf = 0x3f3504f3u, kOne = 0x3f800000u;
  const S::bits up = (S::bits)x + (kOne - kRootHalf);
  const vf32 k = __builtin_convertvector((S::ints)(up >> 23) - 127, vf32);
  const vf32 f = (vf32)((up & 0x007fffffu) + kRootHalf) - 1.0f;
  vf32 p = splat(-0.07634498924f);
  p = p * f + 0.1276158392f;
  p = p * f - 0.1316018552f;
  p = p * f + 0.1420175731f;
  p = p * f - 0.1662335694f;
  p = p * f + 0.2000122666f;
  p = p * f - 0.2500081956f;
  p = p * f + 0.3333333135f;
  const vf32 rest = f * f * (f * p - 0.5f) + k * 0x1.7f7d1cp-20f;
  return select(x == x, (rest + f) + k * 0x1.62e4p-1f, x);
}

// e^x - 1 for x <= 0, without cancellation near 0: there the power is 1.
FASTOPS_INLINE vf32 expm1(vf32 x) {
  reduced a = reduce<127>(at_least(x, -87.0f));
  vf32 p = a.r + a.r * a.r * exp_tail(a.r);  // e^r - 1
  return p * a.power + (a.power - 1.0f);
}

// e^-2|x| keeps both tails accurate: tanh |x| = -expm1(-2|x|) / (expm1(-2|x|) + 2).
FASTOPS_INLINE vf32 tanh(vf32 x) {
  using bits = simd<float>::bits;
  vf32 e = expm1(2.0f * minus_abs(x));
  vf32 y = quotient(-e, e + 2.0f);
  return (vf32)(((bits)y & ~kSign) | ((bits)x & kSign));
}

// e^-|x|, which cannot overflow, for a result that is rounded to T.
template <class T, class V>
FASTOPS_INLINE V exp_minus_abs(V x) {
  if constexpr (sizeof(T) == 2)
    return exp<true>(minus_abs(x));
  else
    return exp(minus_abs(x));
}

// 1 / (1 + e^-x)
template <class T, class V>
FASTOPS_INLINE V sigmoid(V x) {
  const V e = exp_minus_abs<T>(x), one = like(x, 1);
  return quotient(select(x < 0, e, one), one + e);
}

// sigmoid(x) and sigmoid(-x): the difference of one from 1 has no more digits than it.
template <class V>
struct sigmoids {
  V up, down;
};
template <class T, class V>
FASTOPS_INLINE sigmoids<V> sigmoids_of(V x) {
  const V e = exp_minus_abs<T>(x), one = like(x, 1), large = quotient(one, one + e), small = e * large;
  return {select(x < 0, small, large), select(x < 0, large, small)};
}

template <class V>
FASTOPS_INLINE V elu(V x) {
  return select(x > 0, x, expm1(x));  // whatever it says above 0
}

// Phi(x), the normal distribution function, and its density e^(-x²/2) / sqrt(2 pi), for results that are rounded to T.
template <class V>
struct normal {
  V cdf, pdf;
};

template <class T>
FASTOPS_INLINE normal<vf64> normal_of(vf64 x) {
  return {0.5 * erfc(x * -0.70710678118654752440), 0.39894228040143267794 * exp(-0.5 * x * x)};
}

// 2^64·e^(-x²/2) for 0 <= x <= 15: the square of x's leading 12 bits is exact, and what it leaves is at most 0.055.
template <bool Half>
FASTOPS_INLINE vf32 exp_minus_half_square(vf32 x) {
  if constexpr (Half) return exp_up<true>(-0.5f * x * x);
  vf32 head = (vf32)((simd<float>::bits)x & 0xfffff000u);
  reduced a = reduce<127 + 64>(-0.5f * head * head);
  a.r -= 0.5f * (x - head) * (x + head);
  return exp_up(a);
}

// 1 - Phi(x) = t·e^(-x²/2)·P(t), t = 1 / (1 + 0.3·x), and the density, for 0 <= x <= 15. P is fitted for the least largest
// error over [0, 14.2]: 2^-28, for the half types 2^-17; the tail keeps its relative accuracy.
template <class T>
FASTOPS_INLINE normal<vf32> normal_tail(vf32 x) {
  constexpr bool kHalf = sizeof(T) == 2;
  vf32 e = exp_minus_half_square<kHalf>(x);
  vf32 t = quotient(splat(1.0f), 1.0f + 0.3f * x), u = t - 0.5950570107f, p;
  if constexpr (kHalf) {
    constexpr float kP[] = {0.2565799355f, 0.4010971785f, 0.4104757905f, 0.2242438644f, -0.0133532956f, -0.0769371018f};
    p = splat(kP[5] * kDown);
    for (int k = 4; k >= 0; --k) p = p * u + kP[k] * kDown;
  } else {
    constexpr float kP[] = {0.2565801740f,  0.4010629952f,  0.4104011357f, 0.2256069034f, -0.0115726804f,
                            -0.0907989517f, -0.0090817586f, 0.0441351272f, 0.0019848559f, -0.0206178650f};
    p = splat(kP[9] * kDown);
    for (int k = 8; k >= 0; --k) p = p * u + kP[k] * kDown;
  }
  return {t * p * e, 0.39894228f * kDown * e};
}

template <class T>
FASTOPS_INLINE normal<vf32> normal_of(vf32 x) {
  auto [tail, pdf] = normal_tail<T>(at_most(magnitude(x), 15.0f));
  return {select(x > 0.0f, 1.0f - tail, tail), pdf};
}

// x·Phi(x)
template <class T>
FASTOPS_INLINE vf64 gelu(vf64 x) {
  return x * normal_of<T>(x).cdf;
}
// max(x, 0) - |x|·(1 - Phi(|x|)): no select. Beyond 15 the tail is 0, and -inf gives NaN as the product does.
template <class T>
FASTOPS_INLINE vf32 gelu(vf32 x) {
  vf32 a = magnitude(at_most(x, 15.0f));
  return at_least(x, 0.0f) - a * normal_tail<T>(at_most(a, 15.0f)).cdf;
}

// 2z = x·(first + third·x²) with z = sqrt(2 / pi)·(x + 0.044715·x³): the constants' first half of the digits, and the rest.
template <class A>
struct cubic;
template <>
struct cubic<float> {
  static constexpr float first = 0x1.988p0f, first_rest = 0x1.14cf5p-14f, third = 0x1.244p-4f,
                         third_rest = 0x1.3ca936p-18f;
  static constexpr uint32_t head = 0xfffff000u;
  static constexpr float most = 11.0f;  // e^-2z is 0 from there on
};
template <>
struct cubic<double> {
  static constexpr double first = 0x1.988453p0, first_rest = 0x1.ea1b284687e5ap-27;
  static constexpr double third = 0x1.2444f28p-4, third_rest = 0x1.26c5a57a4def1p-31;
  static constexpr uint64_t head = 0xfffffffff8000000u;
  static constexpr double most = 22.0;
};

template <class A, class V>
FASTOPS_INLINE V head_of(V x) {
  return (V)((typename simd<A>::bits)x & cubic<A>::head);
}

// e^-2z for 0 <= x <= most. The exponent's rounding would be the power's error: products of heads are exact, so that what
// they leave is known, and what the sum's rounding takes comes back as a factor.
template <class T, class V>
FASTOPS_INLINE V exp_minus_cubic(V x) {
  using A = accumulate_t<T>;
  using C = cubic<A>;
  constexpr A third = C::third + C::third_rest;
  if constexpr (sizeof(T) == 2) {
    return exp<true>(-x * (x * x * third + (C::first + C::first_rest)));
  } else {
    const V h = head_of<A>(x), low = x - h, square = h * h, q = head_of<A>(square);
    const V slope = head_of<A>(q * C::third + C::first), product = h * slope;
    const V left = (q * C::third - (slope - C::first)) +
                   (third * ((square - q) + low * (x + h)) + (q * C::third_rest + C::first_rest));
    const V rest = low * (slope + left) + h * left, sum = product + rest;
    const V e = exp(-sum);
    return e - e * (rest - (sum - product));
  }
}

// sigmoid(2z), which is (1 + tanh(z)) / 2, near the normal distribution function, and its derivative.
template <class T, class V>
FASTOPS_INLINE normal<V> logistic_normal_of(V x) {
  using C = cubic<accumulate_t<T>>;
  const V a = at_most(magnitude(x), C::most), e = exp_minus_cubic<T>(a), one = like(x, 1);
  const V large = quotient(one, one + e), small = e * large;
  const V slope = a * a * (3 * (C::third + C::third_rest)) + (C::first + C::first_rest);
  return {select(x < 0, small, large), small * large * slope};
}

}  // namespace fastops::FASTOPS_ISA
