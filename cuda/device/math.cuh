#pragma once
// Elementary functions for float and double, at CUDA's full accuracy, and shorter forms for results of a half type.
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

// 1 / (1 + e^-x) from e^-|x|, which cannot overflow.
template <class A>
__device__ inline A sigmoid(A x) {
  A e = exp(-fabs(x));
  return (x < 0 ? e : A(1)) / (1 + e);
}

// To 2^-16 of it, denormals included, by the special function unit: the full form takes longer than the memory does to
// bring a half type.
__device__ inline float sigmoid_short(float x) {
  float e, r;
  asm("ex2.approx.f32 %0, %1;" : "=f"(e) : "f"(fabsf(x) * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1 + e));
  return (x < 0 ? e : 1.0f) * r;
}

// For a result that is rounded to T.
template <class T>
__device__ inline accumulate_t<T> sigmoid_to(accumulate_t<T> x) {
  if constexpr (sizeof(T) == 2)
    return sigmoid_short(x);
  else
    return sigmoid(x);
}

template <class A>
__device__ inline A elu(A x) {
  return x > 0 ? x : A(expm1(x));
}

// The normal distribution function and its density.
__device__ inline float normal_cdf(float x) { return normcdff(x); }
__device__ inline double normal_cdf(double x) { return normcdf(x); }
template <class A>
__device__ inline A normal_pdf(A x) {
  return A(0.39894228040143267794) * exp(A(-0.5) * x * x);
}

}  // namespace device
}  // namespace fastops
