#pragma once
// The sum of e^u over a row of u = scale·x, as the largest u and the sum of e^(u - largest): Milakov, Gimelshein 2018,
// arXiv:1805.02867.
#include <cfloat>
#include <cmath>

#include "device/math.cuh"
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {

using device::Vector;

// max: the largest of sign·x, sign that of the scale.
template <class A>
struct alignas(2 * sizeof(A)) OnlineSum {
  A max, sum;
};

// Short: for results of a half type, to 2^-16 of them.
template <class A, bool Short>
struct Exponent {
  // Of no element at all. It is finite, so that a difference from it is a number; no e^(u - max) is lost by it.
  static constexpr A kNone = sizeof(A) == 4 ? A(-FLT_MAX) : A(-DBL_MAX);

  A sign, scale;   // scale: without its sign; not 0
  A factor, rest;  // scale·log2(e): rounded, and what rounding took

  explicit Exponent(double given) : sign(given < 0 ? A(-1) : A(1)), scale(static_cast<A>(std::fabs(given))) {
    const double log2e = 1.4426950408889634074 * static_cast<double>(scale);
    factor = static_cast<A>(log2e);
    rest = static_cast<A>(log2e - static_cast<double>(factor));
  }

  // x whose power is 0 and that is no maximum.
  __device__ A padding() const { return sign * A(-INFINITY); }

  // e^(scale·d)
  __device__ A power(A d) const {
    if constexpr (sizeof(A) == 8) {
      return exp(scale * d);
    } else if constexpr (Short) {
      return device::flushed_exp2(d * factor);
    } else {
      // The exponent's rounding comes back as a factor. Far below 0 it would be inf - inf.
      const A t = d * factor, e = device::power_of_two(t), lost = fma(d, rest, fma(d, factor, -t));
      return e > 0 ? fma(e * A(0.69314718055994530942), lost, e) : e;
    }
  }
  __device__ A power(A x, A max) const { return power(sign * x - max); }
  // u - largest
  __device__ A difference(A x, A max) const { return scale * (sign * x - max); }

  __device__ OnlineSum<A> merge(const OnlineSum<A>& a, const OnlineSum<A>& b) const {
    const bool less = a.max < b.max;
    const A larger = less ? b.max : a.max, smaller = less ? a.max : b.max;
    return {larger, fma(less ? a.sum : b.sum, power(smaller - larger), less ? b.sum : a.sum)};
  }
  // The larger of `so_far` and the largest sign·x of a vector.
  template <class T, int W>
  __device__ A peak(A so_far, const Vector<T, W>& v) const {
    if constexpr (sizeof(T) == 2 && W % 2 == 0) {
      const unsigned flip = sign > 0 ? 0 : 0x80008000u;  // the signs of both halves
      unsigned pair = v.pair[0] ^ flip;
#pragma unroll
      for (int k = 1; k < W / 2; ++k) pair = device::max_pairs<T>(pair, v.pair[k] ^ flip);
      float first, second;
      device::widen_pair<T>(pair, first, second);
      return fmax(so_far, fmax(first, second));
    } else {
      A x[W];
      device::widen(v, x);
#pragma unroll
      for (int k = 0; k < W; ++k) so_far = fmax(so_far, sign * x[k]);
      return so_far;
    }
  }
  // The same sum about a peak that is not smaller. The product is rounded: fused with the addition of another lane's
  // sum, it would differ from lane to lane.
  __device__ OnlineSum<A> raised(const OnlineSum<A>& sum, A peak) const {
    return {peak, device::product(sum.sum, power(sum.max - peak))};
  }
  // Adds elements of which none is above the sum's peak.
  template <int W>
  __device__ void add_powers(OnlineSum<A>& sum, const A (&x)[W]) const {
    A of[W];
#pragma unroll
    for (int k = 0; k < W; ++k) of[k] = power(x[k], sum.max);
    sum.sum += device::tree_sum(of);
  }
  template <int W>
  __device__ void add(OnlineSum<A>& sum, const A (&x)[W]) const {
    A max = sum.max, powers[W];
    if (sign > 0) {  // a multiplication less, of each element
#pragma unroll
      for (int k = 0; k < W; ++k) max = fmax(max, x[k]);
    } else {
#pragma unroll
      for (int k = 0; k < W; ++k) max = fmax(max, -x[k]);
    }
#pragma unroll
    for (int k = 0; k < W; ++k) powers[k] = power(x[k], max);
    sum.sum = fma(sum.sum, power(sum.max - max), device::tree_sum(powers));
    sum.max = max;
  }
};

}  // namespace fastops::FASTOPS_ARCH
