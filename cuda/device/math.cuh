#pragma once
// Elementary functions for float and double, at CUDA's full accuracy but for float's normal distribution, 12 units in the last
// place, and shorter forms for results of a half type.
#include "types.cuh"

namespace fastops {
namespace device {

// a·b rounded, never fused into an addition that follows.
template <class A>
__device__ inline A product(A a, A b);
template <>
__device__ inline float product(float a, float b) {
  return __fmul_rn(a, b);
}
template <>
__device__ inline double product(double a, double b) {
  return __dmul_rn(a, b);
}

// a / b of numbers that are not negative, in 32 bits where they allow it: 64 take five times as long.
__device__ inline int64 quotient(int64 a, int64 b) {
  return (a | b) >> 32 ? a / b : static_cast<unsigned>(a) / static_cast<unsigned>(b);
}

// Sum of W numbers as a tree.
template <int W, class A>
__device__ inline A tree_sum(const A (&x)[W]) {
  if constexpr (W == 1) {
    return x[0];
  } else {
    A half[W / 2];
#pragma unroll
    for (int k = 0; k < W / 2; ++k) half[k] = x[2 * k] + x[2 * k + 1];
    return tree_sum(half);
  }
}

// 1 / (1 + e^-x) from e^-|x|, which cannot overflow.
template <class A>
__device__ inline A sigmoid(A x) {
  A e = exp(-fabs(x));
  return (x < 0 ? e : A(1)) / (1 + e);
}

// 1 / x; of float to about 1 unit in the last place.
__device__ inline float short_reciprocal(float x) { return __fdividef(1.0f, x); }
__device__ inline double short_reciprocal(double x) { return 1 / x; }

// 2^x and 1/x by the special function unit, each to 2^-22 of it; a result below 2^-126 is 0. Full forms take longer than the
// memory does to bring a half type, and a power that keeps denormals three instructions more.
__device__ inline float flushed_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float flushed_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// To 2^-16 of it: 2^16 times as large until the end, so that bfloat16's denormals are kept, those of x·sigmoid(x) too.
__device__ inline float sigmoid_short(float x) {
  return 0x1p-16f * flushed_reciprocal(flushed_exp2(fmaf(x, -1.4426950408889634f, -16.0f)) + 0x1p-16f);
}

// For a result that is rounded to T.
template <class T>
__device__ inline accumulate_t<T> sigmoid_to(accumulate_t<T> x) {
  if constexpr (sizeof(T) == 2)
    return sigmoid_short(x);
  else
    return sigmoid(x);
}

// e^x - 1 below 0.
template <class A>
__device__ inline A elu(A x) {
  return x > 0 ? x : A(expm1(x));
}

// To 2^-16 of it: a power less 1 where that does not cancel, else three terms of the series.
__device__ inline float elu_short(float x) {
  const float e = flushed_exp2(x * 1.4426950408889634f);
  const float below = x > -0.04f ? x * fmaf(x, fmaf(x, 0.16666667f, 0.5f), 1.0f) : e - 1;
  return x > 0 ? x : below;
}

// For a result that is rounded to T.
template <class T>
__device__ inline accumulate_t<T> elu_to(accumulate_t<T> x) {
  if constexpr (sizeof(T) == 2)
    return elu_short(x);
  else
    return elu(x);
}

// The hyperbolic tangent and its derivative.
template <class A>
struct tangent {
  A value, slope;
};
template <class A>
__device__ inline tangent<A> tanh_of(A x) {
  const A t = tanh(x);
  return {t, 1 - t * t};
}

// To 2^-16 of them, with r = 1 / (1 + e^2|x|): 1 - 2r, near 0 two terms of the series, and 4·r·(1 - r), which does not cancel;
// that is 0 from 43.7 on, where it is below 2^-124.
__device__ inline tangent<float> tanh_short(float x) {
  const float r = flushed_reciprocal(1 + flushed_exp2(fabsf(x) * 2.8853900817779268f));
  const float near = x * fmaf(x * x, -0.33333333f, 1.0f);
  return {fabsf(x) < 0.06f ? near : copysignf(fmaf(r, -2.0f, 1.0f), x), 4 * r * (1 - r)};
}

// For a result that is rounded to T.
template <class T>
__device__ inline tangent<accumulate_t<T>> tanh_to(accumulate_t<T> x) {
  if constexpr (sizeof(T) == 2)
    return tanh_short(x);
  else
    return tanh_of(x);
}

// The normal distribution function and its density.
template <class A>
struct normal {
  A cdf, pdf;
};
__device__ inline normal<double> normal_of(double x) {
  return {normcdf(x), 0.39894228040143267794 * exp(-0.5 * x * x)};
}

// u^0, u^1, ... weighted by p[0], p[1], ...
template <int N>
__device__ inline float polynomial(const float (&p)[N], float u) {
  float sum = p[N - 1];
#pragma unroll
  for (int k = N - 2; k >= 0; --k) sum = fmaf(sum, u, p[k]);
  return sum;
}

// 1 - Phi(|x|) = t·e^(-x²/2)·P(t), t = 1 / (1 + 0.3·|x|), with P as in cpp/kernels/math.h; in half the instructions of normcdff()
// and expf(). Short: to 2^-15, the power 2^8 times as large, as in sigmoid_short(), which keeps Phi's denormals; the density is 0
// from 13.63 on. Else what x² and its product leave when they are rounded comes back as a factor of the power.
template <bool Short>
__device__ inline normal<float> normal_of(float x) {
  constexpr float kScale = -0x1.715476p-1f, kScaleRest = -0x1.4ae0cp-27f;  // -log2(e) / 2
  constexpr float kDown = Short ? 0x1p-8f : 1.0f;
  const float a = fabsf(x) > 15.0f ? 15.0f : fabsf(x), square = a * a;  // NaN stays
  const float t = flushed_reciprocal(fmaf(a, 0.3f, 1.0f)), u = t - 0.5950570107f;
  float e, p;
  if constexpr (Short) {
    constexpr float kP[] = {0.2565799355f * kDown, 0.4010971785f * kDown,  0.4104757905f * kDown,
                            0.2242438644f * kDown, -0.0133532956f * kDown, -0.0769371018f * kDown};
    p = polynomial(kP, u);
    e = flushed_exp2(fmaf(square, kScale, 8.0f));
  } else {
    constexpr float kP[] = {0.2565801740f,  0.4010629952f,  0.4104011357f, 0.2256069034f, -0.0115726804f,
                            -0.0907989517f, -0.0090817586f, 0.0441351272f, 0.0019848559f, -0.0206178650f};
    p = polynomial(kP, u);
    const float exponent = square * kScale;
    const float lost = fmaf(fmaf(a, a, -square), kScale, fmaf(square, kScaleRest, fmaf(square, kScale, -exponent)));
    asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(exponent));
    e = fmaf(e * 0.69314718f, lost, e);
  }
  const float tail = t * e * p;
  return {x > 0 ? 1 - tail : tail, 0.39894228f * kDown * e};
}

// For a result that is rounded to T.
template <class T>
__device__ inline normal<accumulate_t<T>> normal_to(accumulate_t<T> x) {
  if constexpr (sizeof(T) == 8)
    return normal_of(x);
  else
    return normal_of<sizeof(T) == 2>(x);
}

// 2z·log2(e) = x·(first + third·x²), where z = sqrt(2 / pi)·(x + 0.044715·x³). `first` has a few digits less than the type, so
// that its difference from the sum is exact.
template <class A>
struct cubic;
template <>
struct cubic<float> {
  static constexpr float first = 0x1.26aecp1f, first_rest = 0x1.0de73ap-22f;
  static constexpr float third = 0x1.a5a7dp-4f, third_rest = -0x1.151aaep-29f;
};
template <>
struct cubic<double> {
  static constexpr double first = 0x1.26aec21bce7p1, first_rest = 0x1.652ed2859b431p-45;
  static constexpr double third = 0x1.a5a7cf7572a98p-4, third_rest = -0x1.b91c940e4cfcfp-58;
};

// e^-2z for 0 <= x <= 22. What the exponent's rounding takes comes back as a factor of the power.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline double power_of_two(double x) { return exp2(x); }
template <class A>
__device__ inline A exp_minus_cubic(A x) {
  using C = cubic<A>;
  const A square = x * x, square_rest = fma(x, x, -square), sum = fma(square, C::third, C::first);
  const A sum_rest =
      fma(square, C::third, C::first - sum) + fma(square, C::third_rest, fma(square_rest, C::third, C::first_rest));
  const A exponent = x * sum, rest = fma(x, sum_rest, fma(x, sum, -exponent)), e = power_of_two(-exponent);
  return fma(e * A(-0.69314718055994530942), rest, e);
}

// sigmoid(2z), which is (1 + tanh(z)) / 2, near the normal distribution function, and its derivative. For results that are
// rounded to T: of a half type to 2^-15, the power 2^16 times as large, as in sigmoid_short().
template <class T>
__device__ inline normal<accumulate_t<T>> logistic_normal_to(accumulate_t<T> x) {
  using A = accumulate_t<T>;
  using C = cubic<A>;
  constexpr A kFirst = 1.5957691216057307118, kThird = 0.071354816272600248776;  // of 2z
  const A a = fabs(x) > 22 ? A(22) : fabs(x);                                    // NaN stays
  A large, small;
  if constexpr (sizeof(T) == 2) {
    const float e = flushed_exp2(fmaf(-a, fmaf(a * a, C::third, C::first + C::first_rest), 16.0f));
    large = flushed_reciprocal(fmaf(e, 0x1p-16f, 1.0f));
    small = e * large * 0x1p-16f;
  } else {
    const A e = exp_minus_cubic(a);
    large = short_reciprocal(1 + e);
    small = e * large;
  }
  return {x < 0 ? small : large, small * large * fma(a * a, 3 * kThird, kFirst)};
}

}  // namespace device
}  // namespace fastops
