#pragma once
// What the kernels of the forward share.
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

// What a kernel needs, in the types it computes in.
template <class T, class P>
struct Forward {
  using A = accumulate_t<T>;
  const T *input, *residual;
  const P *weight, *bias;
  T *output, *sum;
  A *centre, *rstd;
  int64_t rows, n, input_stride, residual_stride;
  A inverse_n, eps, offset;

  explicit Forward(const NormForward& a)
      : input(static_cast<const T*>(a.input)),
        residual(static_cast<const T*>(a.residual)),
        weight(static_cast<const P*>(a.weight)),
        bias(static_cast<const P*>(a.bias)),
        output(static_cast<T*>(a.output)),
        sum(static_cast<T*>(a.sum)),
        centre(static_cast<A*>(a.centre)),
        rstd(static_cast<A*>(a.rstd)),
        rows(a.rows),
        n(a.n),
        input_stride(a.input_stride),
        residual_stride(a.residual_stride),
        inverse_n(static_cast<A>(1.0 / static_cast<double>(a.n))),
        eps(static_cast<A>(a.eps)),
        offset(a.weight ? static_cast<A>(a.weight_offset) : A(0)) {}

  // A launch has at most 2³¹ - 1 blocks.
  Forward from_row(int64_t row) const {
    Forward a = *this;
    a.input += row * input_stride;
    if (residual) a.residual += row * residual_stride;
    a.output += row * n;
    if (sum) a.sum += row * n;
    if (centre) a.centre += row;
    if (rstd) a.rstd += row;
    a.rows -= row;
    return a;
  }
};

template <class T>
__device__ inline T rounded_sum(T a, T b) {
  return device::narrow<T>(device::widen(a) + device::widen(b));
}

template <class T, int W>
__device__ inline Vector<T, W> rounded_sum(const Vector<T, W>& a, const Vector<T, W>& b) {
  accumulate_t<T> x[W], y[W];
  device::widen(a, x);
  device::widen(b, y);
#pragma unroll
  for (int k = 0; k < W; ++k) x[k] += y[k];
  return device::narrow_all<T>(x);
}

// y = c·rstd·w + b for one vector, c being centred.
template <Norm N, class P, int W, class A>
__device__ inline void scale(A (&c)[W], A rstd, const Vector<P, W>& weight, const Vector<P, W>& bias, A offset) {
  accumulate_t<P> w[W], b[W];
  device::widen(weight, w);
  if constexpr (N == Norm::layer) device::widen(bias, b);
#pragma unroll
  for (int k = 0; k < W; ++k) {
    c[k] *= rstd;
    if constexpr (N == Norm::layer)
      c[k] = c[k] * w[k] + b[k];
    else
      c[k] *= w[k] + offset;
  }
}

}  // namespace fastops::FASTOPS_ARCH
