#pragma once
// Elementary functions on vectors: f32 by our own polynomials, f64 lane by lane through the C library.
// tests/test_cpu_math.py measures them, through the ops, over the range of f32.
#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

#define FASTOPS_LANEWISE(name, function)                                \
  FASTOPS_INLINE vf64 name(vf64 x) {                                    \
    for (int k = 0; k < simd<double>::size; ++k) x[k] = function(x[k]); \
    return x;                                                           \
  }
FASTOPS_LANEWISE(exp, __builtin_exp)
FASTOPS_LANEWISE(expm1, __builtin_expm1)
FASTOPS_LANEWISE(tanh, __builtin_tanh)
FASTOPS_LANEWISE(erfc, __builtin_erfc)
#undef FASTOPS_LANEWISE

template <class V>
FASTOPS_INLINE V select(decltype(V{} < V{}) mask, V a, V b) {
  return mask ? a : b;
}

template <class V>
FASTOPS_INLINE V abs(V x) {
  return select(x < 0, -x, x);
}

constexpr uint32_t kSign = 0x80000000u;
FASTOPS_INLINE vf32 minus_abs(vf32 x) { return (vf32)((simd<float>::bits)x | kSign); }
FASTOPS_INLINE vf64 minus_abs(vf64 x) { return select(x < 0, x, -x); }

// NaN stays NaN.
FASTOPS_INLINE vf32 at_least(vf32 x, float bound) {
#if defined(__AVX512F__) && FASTOPS_VECTOR_BYTES == 64
  return (vf32)_mm512_maskz_max_ps(kAllLanes, (__m512)splat(bound), (__m512)x);
#else
  return select(x < bound, splat(bound), x);
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
template <int Bias, bool Half = false>
FASTOPS_INLINE reduced reduce(vf32 x) {
  constexpr float kShift = 0x1.8p23f + Bias;
  vf32 shifted = x * 0x1.715476p0f + kShift;
  vf32 k = shifted - kShift, r;
  if constexpr (Half)
    r = x - k * 0x1.62e43p-1f;
  else
    r = (x - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;  // ln 2 in two parts; k times the first is exact
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

// The same to 2^-17 of e^r.
FASTOPS_INLINE vf32 exp_tail_short(vf32 r) {
  vf32 p = splat(0.0419212132692f);
  p = p * r + 0.1675390154123f;
  p = p * r + 0.4999895095825f;
  return p;
}

// e^x for x <= 43, denormal results included, NaN for NaN; Half: to 2^-16 of it, enough for a half type. By way of a
// normal number, 2^64 times as large.
template <bool Half = false>
FASTOPS_INLINE vf32 exp(vf32 x) {
  reduced a = reduce<127 + 64, Half>(at_least(x, -104.0f));
  vf32 tail = Half ? exp_tail_short(a.r) : exp_tail(a.r);
  vf32 y = 1.0f + (a.r + a.r * a.r * tail);
  return y * a.power * 0x1p-64f;
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

// 1 / (1 + e^-x) from e^-|x|, which cannot overflow, for a result that is rounded to T.
template <class T, class V>
FASTOPS_INLINE V sigmoid(V x) {
  V e, one = like(x, 1);
  if constexpr (sizeof(T) == 2)
    e = exp<true>(minus_abs(x));
  else
    e = exp(minus_abs(x));
  return quotient(select(x < 0, e, one), one + e);
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

// e^(-x²/2) for 0 <= x <= 15: the square of x's leading 12 bits is exact, and what it leaves is small.
FASTOPS_INLINE vf32 exp_minus_half_square(vf32 x) {
  vf32 head = (vf32)((simd<float>::bits)x & 0xfffff000u);
  vf32 d = -0.5f * (x - head) * (x + head);  // -0.055 at the most
  return exp(-0.5f * head * head) * (1.0f + d * (1.0f + d * (0.5f + d * (1.0f / 6 + d * (1.0f / 24)))));
}

// 1 - Phi(|x|) = t·e^(-x²/2)·P(t), t = 1 / (1 + 0.3·|x|). P is fitted for the least largest error over 0 <= |x| <= 14.2:
// 2^-28, for the half types 2^-17; the tail keeps its relative accuracy.
template <class T>
FASTOPS_INLINE normal<vf32> normal_of(vf32 x) {
  constexpr bool kHalf = sizeof(T) == 2;
  vf32 a = select(abs(x) > 15.0f, splat(15.0f), abs(x)), e;
  if constexpr (kHalf)
    e = exp<true>(-0.5f * a * a);
  else
    e = exp_minus_half_square(a);
  vf32 t = quotient(splat(1.0f), 1.0f + 0.3f * a), u = t - 0.5950570107f, p;
  if constexpr (kHalf) {
    constexpr float kP[] = {0.2565799355f, 0.4010971785f, 0.4104757905f, 0.2242438644f, -0.0133532956f, -0.0769371018f};
    p = splat(kP[5]);
    for (int k = 4; k >= 0; --k) p = p * u + kP[k];
  } else {
    constexpr float kP[] = {0.2565801740f,  0.4010629952f,  0.4104011357f, 0.2256069034f, -0.0115726804f,
                            -0.0907989517f, -0.0090817586f, 0.0441351272f, 0.0019848559f, -0.0206178650f};
    p = splat(kP[9]);
    for (int k = 8; k >= 0; --k) p = p * u + kP[k];
  }
  vf32 tail = t * e * p;
  return {select(x > 0.0f, 1.0f - tail, tail), 0.39894228f * e};
}

}  // namespace fastops::FASTOPS_ISA
