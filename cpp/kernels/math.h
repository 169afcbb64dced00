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

// x = k·ln 2 + r with |r| <= ln 2 / 2, for |x| < 2^22·ln 2. Rounding by the magic number 1.5·2^23 leaves k's integer in
// the low bits of `shifted`.
struct reduced {
  vf32 r, k;
  simd<float>::ints power;
};
FASTOPS_INLINE reduced reduce(vf32 x) {
  constexpr float kShift = 0x1.8p23f;
  vf32 shifted = x * 0x1.715476p0f + kShift;
  vf32 k = shifted - kShift;
  vf32 r = (x - k * 0x1.62e4p-1f) - k * 0x1.7f7d1cp-20f;  // ln 2 in two parts; k times the first is exact
  return {r, k, (simd<float>::ints)shifted - (simd<float>::ints)(splat(kShift))};
}

// 2^k for -126 <= k <= 127.
FASTOPS_INLINE vf32 power_of_two(simd<float>::ints k) { return (vf32)((k + 127) << 23); }

// (e^r - 1 - r) / r², |r| <= ln 2 / 2: the Taylor terms up to r^7/7!, whose remainder is under 2^-27 of e^r.
FASTOPS_INLINE vf32 exp_tail(vf32 r) {
  vf32 p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return p;
}

// e^x, denormal results included; inf above 88.73, NaN for NaN.
FASTOPS_INLINE vf32 exp(vf32 x) {
  vf32 bounded = select(x > 89.0f, splat(89.0f), x);
  bounded = select(bounded < -104.0f, splat(-104.0f), bounded);
  reduced a = reduce(bounded);
  vf32 y = 1.0f + (a.r + a.r * a.r * exp_tail(a.r));
  simd<float>::ints half = a.power >> 1;  // in two steps, since 2^k itself may be outside the normal range
  return y * power_of_two(half) * power_of_two(a.power - half);
}

// e^x - 1 for x <= 0, without cancellation near 0.
FASTOPS_INLINE vf32 expm1(vf32 x) {
  reduced a = reduce(select(x < -104.0f, splat(-104.0f), x));
  vf32 p = a.r + a.r * a.r * exp_tail(a.r);  // e^r - 1
  simd<float>::ints half = a.power >> 1;
  vf32 s = power_of_two(half), t = power_of_two(a.power - half);
  return select(a.k == 0.0f, p, p * s * t + (s * t - 1.0f));
}

// e^-2|x| keeps both tails accurate: tanh x = -sign(x)·expm1(-2|x|) / (expm1(-2|x|) + 2).
FASTOPS_INLINE vf32 tanh(vf32 x) {
  vf32 e = expm1(-2.0f * abs(x));
  vf32 y = -e / (e + 2.0f);
  return select(x < 0.0f, -y, select(x == 0.0f, x, y));
}

// 1 / (1 + e^-x) from e^-|x|, which cannot overflow.
template <class V>
FASTOPS_INLINE V sigmoid(V x) {
  V e = exp(-abs(x));
  return select(x < 0, e, splat(decltype(x[0] + x[0])(1))) / (1 + e);
}

template <class V>
FASTOPS_INLINE V elu(V x) {
  return select(x > 0, x, expm1(select(x > 0, like(x, 0), x)));
}

// e^(-x²/2): the square of x's leading 12 bits is exact, the rest is small.
FASTOPS_INLINE vf32 exp_minus_half_square(vf32 x) {
  vf32 head = (vf32)((simd<float>::bits)x & 0xfffff000u);
  return exp(-0.5f * head * head) * exp(-0.5f * (x - head) * (x + head));
}
FASTOPS_INLINE vf64 exp_minus_half_square(vf64 x) { return exp(-0.5 * x * x); }

// Phi(x), the normal distribution function, and its density e^(-x²/2) / sqrt(2 pi).
template <class V>
struct normal {
  V cdf, pdf;
};

FASTOPS_INLINE normal<vf64> normal_of(vf64 x) {
  return {0.5 * erfc(x * -0.70710678118654752440), 0.39894228040143267794 * exp_minus_half_square(x)};
}

// 1 - Phi(|x|) = t·exp(-x²/2 + P(t)), t = 1 / (1 + 0.3·|x|). P interpolates at the Chebyshev nodes of
// 1 / (1 + 0.3·14) <= t <= 1, error 9e-9; in float arithmetic the tail keeps its relative accuracy.
FASTOPS_INLINE normal<vf32> normal_of(vf32 x) {
  vf32 a = select(abs(x) > 15.0f, splat(15.0f), abs(x));
  vf32 e = exp_minus_half_square(a);
  vf32 t = 1.0f / (1.0f + 0.3f * a);
  constexpr float kP[] = {-2.12297304f,  1.00142178f,   0.396095402f, 0.228180772f,  -0.237714496f, 0.351064158f,
                          -0.401543073f, -0.366928574f, 0.896358075f, -0.554975623f, 0.117867442f};
  vf32 p = splat(kP[10]);
  for (int k = 9; k >= 0; --k) p = p * t + kP[k];
  vf32 tail = t * e * exp(p);
  vf32 cdf = select(x > 0.0f, 1.0f - tail, tail);
  return {select(x == x, cdf, x), 0.39894228f * e};
}

}  // namespace fastops::FASTOPS_ISA
