#pragma once
// Elementary functions for float and double, at CUDA's full accuracy (no fast-math forms).

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
