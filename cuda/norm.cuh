#pragma once
// Helpers of the norms' backward kernels: the weight, vector widths, dispatch.
#include "device/math.cuh"
#include "device/vector.cuh"
#include "dispatch.cuh"
#include "engine/row/team_sum.cuh"
#include "kernels/norm.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::kVector;
using device::Vector;

// A weight. If it is not given, every vector is the same constant one, so that loads need no branch.
template <class P>
struct Parameter {
  const P* at;
  int step;

  __device__ Parameter(const P* given, const P* constant) : at(given ? given : constant), step(given ? 1 : 0) {}

  template <int W, class Number>
  __device__ const Vector<P, W>* place(Number number) const {
    return reinterpret_cast<const Vector<P, W>*>(at + number * W * step);
  }
  template <int W, class Number>
  __device__ Vector<P, W> vector(Number number) const {
    return *place<W>(number);
  }
  // Vector begin + number, and zeros from `count` on: nothing infinite comes of a product with a gradient that is not there.
  template <int W>
  __device__ Vector<P, W> vector_or_zero(int number, int count, int begin = 0) const {
    Vector<P, W> v = vector<W>(begin + min(number, count - 1));
    if (number >= count) v = {};
    return v;
  }
};

// 32 bytes of 1.
template <class P>
struct Bits;
template <>
struct Bits<device::f16> {
  static constexpr unsigned one[2] = {0x3c003c00u, 0x3c003c00u};
};
template <>
struct Bits<device::bf16> {
  static constexpr unsigned one[2] = {0x3f803f80u, 0x3f803f80u};
};
template <>
struct Bits<float> {
  static constexpr unsigned one[2] = {0x3f800000u, 0x3f800000u};
};
template <>
struct Bits<double> {
  static constexpr unsigned one[2] = {0u, 0x3ff00000u};
};
struct alignas(16) Words {
  unsigned at[8];
};
constexpr Words repeat(const unsigned (&w)[2]) { return {{w[0], w[1], w[0], w[1], w[0], w[1], w[0], w[1]}}; }
template <class P>
__device__ const Words kOne = repeat(Bits<P>::one);

template <class P>
__device__ inline Parameter<P> weight_or_one(const P* weight) {
  return {weight, reinterpret_cast<const P*>(&kOne<P>)};
}

// Sizes in vectors of W elements: 16 bytes, or less where n allows no more.
template <class T>
int vector_width(int64_t n) {
  constexpr int full = kVector<T>;
  return n % full == 0 ? full : full == 8 && n % 4 == 0 ? 4 : 1;
}

// f(std::integral_constant<int, W>) for that width.
template <class T, class F>
int dispatch_width(int64_t n, F f) {
  constexpr int full = kVector<T>;
  const int width = vector_width<T>(n);
  if (width == full) return f(std::integral_constant<int, full>{});
  if constexpr (full == 8) {
    if (width == 4) return f(std::integral_constant<int, 4>{});
  }
  return f(std::integral_constant<int, 1>{});
}

template <class F>
int dispatch_norm(Norm norm, F f) {
  return norm == Norm::layer ? f(std::integral_constant<Norm, Norm::layer>{})
                             : f(std::integral_constant<Norm, Norm::rms>{});
}

// f(norm, tag<T>, tag<P>) for the norm and the types of data and parameters.
template <class Problem, class F>
int dispatch_problem(const Problem& a, F f) {
  return dispatch(a.dtype, [&](auto t) -> int {
    return dispatch_parameter<typename decltype(t)::type>(a.parameter, [&](auto p) -> int {
      return dispatch_norm(a.norm, [&](auto norm) -> int { return f(norm, t, p); });
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
