#pragma once
// What the norm kernels share: how the threads of a team divide a row, its sums, parameters, statistics.
//
// A team of threads takes a row: some lanes of a warp, some warps of a block, or the blocks of a cluster. Vector g of
// thread t is number g·team + t of the row. How many elements a vector has and how large a team is depends on n and the
// dtypes alone, so that a row's bits do not depend on the rows beside it.
#include <cfloat>

#include "device/math.cuh"
#include "device/vector.cuh"
#include "dispatch.cuh"
#include "kernels/norm.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::kVector;
using device::tree_sum;
using device::Vector;

constexpr int kWarp = 32;
constexpr int kVectors = 2;  // of 16 bytes, a thread's in the kernels of short rows

template <class A, int N>
struct Sums {
  A at[N];
};

template <int Lanes, class A, int N>
__device__ inline void lane_sum(Sums<A, N>& sums) {
#pragma unroll
  for (int lane = Lanes / 2; lane > 0; lane /= 2)
#pragma unroll
    for (int k = 0; k < N; ++k) sums.at[k] += __shfl_xor_sync(0xffffffffu, sums.at[k], lane);
}

// Up to so many warps' sums each thread adds in turn; those of more, a warp's lanes.
constexpr int kWarpsInTurn = 4;

// Sum over a team of whole warps, the same bits for each of its threads. Two sums in a row need two scratches; a third
// may take the first again.
template <class A, int N>
struct Scratch {
  Sums<A, N> warp[kWarp];
};

template <class A, int N, class Barrier>
__device__ inline void team_sum(Sums<A, N>& sums, int warps, int warp, Scratch<A, N>& scratch, Barrier barrier) {
  lane_sum<kWarp>(sums);
  if (warps == 1) return;
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) scratch.warp[warp] = sums;
  barrier();
  static_assert(kWarpsInTurn == 4);
  if (warps <= kWarpsInTurn) {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sums.at[k] = scratch.warp[0].at[k] + scratch.warp[1].at[k];
      if (warps > 2) sums.at[k] += scratch.warp[2].at[k];
      if (warps > 3) sums.at[k] += scratch.warp[3].at[k];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < N; ++k) sums.at[k] = lane < warps ? scratch.warp[lane].at[k] : A(0);
  lane_sum<kWarp>(sums);
}

// 1 / sqrt(variance + eps). The approximation's 2 units in the last place are far below what a half type shows.
template <class T, class A>
__device__ inline A inverse_sqrt(A variance, A eps) {
  if constexpr (sizeof(T) == 2)
    return rsqrtf(variance + eps);
  else
    return A(1) / sqrt(variance + eps);
}

template <int W, class A>
__device__ inline A square_sum(const A (&x)[W]) {
  A sum = 0;
#pragma unroll
  for (int k = 0; k < W; ++k) sum += x[k] * x[k];
  return sum;
}

// Of `count` elements: the mean, rounded, what the rounding took, and the sum of the squares about both together. f32 alone
// has too few digits for the mean of a row that lies far from 0.
template <class A>
struct alignas(4 * sizeof(A) < 16 ? 4 * sizeof(A) : 16) Moments {
  A mean, shift, squares, count;
};

// Any number near the mean will do for what follows: with an element of the row, where one lies this near, the squares of a
// constant row are 0.
template <class A>
__device__ inline A near_mean(A mean, A element) {
  constexpr A kNear = sizeof(A) == 4 ? A(1e-6) : A(1e-15);
  return fabs(element - mean) <= kNear * fabs(mean) ? element : mean;
}

// The mean of a part of a row, from the sum of its elements·scale, where the scale is a power of two about 1 / n: no sum
// overflows and none is rounded for it. What the mean's rounding took is not in `shift` yet for the wide types.
template <class A>
struct PartMean {
  A mean, shift;
};
template <class T, class A>
__device__ inline PartMean<A> part_mean(A total, A first, A count, A inverse_count, A scale, A unscale) {
  const A mean = total * (inverse_count * unscale), near = near_mean(mean, first);
  if constexpr (sizeof(T) > 2) return {near, 0};
  // The sum of half types that lie near each other is exact in f32.
  return {near, fma(-near, count * scale, total) * (inverse_count * unscale)};
}

// With d = x - mean, the sums over a part: Σd² and, for the wide types, Σd, which is the shift.
template <class T>
constexpr int kDistanceSums = sizeof(T) > 2 ? 2 : 1;
template <class T, int W, class A>
__device__ inline void add_distances(Sums<A, kDistanceSums<T>>& sums, bool own, const A (&d)[W]) {
  sums.at[0] += own ? square_sum<W>(d) : A(0);
  if constexpr (kDistanceSums<T> == 2) {
    const A distances = tree_sum<W>(d);
    sums.at[1] += own ? distances : A(0);
  }
}
template <class T, class A>
__device__ inline Moments<A> moments_about(PartMean<A> part, const Sums<A, kDistanceSums<T>>& sums, A count,
                                           A inverse_count) {
  if constexpr (kDistanceSums<T> == 2) part.shift = sums.at[1] * inverse_count;
  constexpr A kMost = sizeof(A) == 4 ? A(FLT_MAX) : A(DBL_MAX);  // squares that overflow stay infinite
  const A squares = sums.at[0] - min(count * (part.shift * part.shift), kMost);
  return {part.mean, part.shift, squares < 0 ? A(0) : squares, count};
}

// Of a row from those of its parts, the same bits for each thread of a warp.
template <class A>
__device__ inline Moments<A> merged(const Moments<A>* parts, int count, A n, A inverse_n) {
  const A origin = parts[0].mean;
  auto distance = [&](const Moments<A>& part) { return (part.mean - origin) + part.shift; };
  Sums<A, 1> away = {}, squares = {};
  auto add_up = [&](auto over_parts) {
    over_parts([&](const Moments<A>& part) { away.at[0] += part.count * inverse_n * distance(part); });
  };
  auto add_squares = [&](auto over_parts) {
    over_parts([&](const Moments<A>& part) {
      const A rest = distance(part) - away.at[0];
      squares.at[0] += part.squares + part.count * (rest * rest);
    });
  };
  if (count <= 4) {
    auto few = [&](auto f) {
      f(parts[0]);
      f(parts[1]);
      if (count > 2) f(parts[2]);
      if (count > 3) f(parts[3]);
    };
    add_up(few);
    add_squares(few);
  } else {
    auto strided = [&](auto f) {
#pragma unroll 1
      for (int k = threadIdx.x % kWarp; k < count; k += kWarp) f(parts[k]);
    };
    add_up(strided);
    lane_sum<kWarp>(away);
    add_squares(strided);
    lane_sum<kWarp>(squares);
  }
  const A mean = origin + away.at[0], taken = mean - origin;
  return {mean, (origin - (mean - taken)) + (away.at[0] - taken), squares.at[0], n};
}

// Weight or bias: where there is none, every vector is the same one, which costs no branch.
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

// 32 bytes of 1, and of -0, whose sum with any number is that number.
template <class P>
struct Bits;
template <>
struct Bits<device::f16> {
  static constexpr unsigned one[2] = {0x3c003c00u, 0x3c003c00u}, minus_zero[2] = {0x80008000u, 0x80008000u};
};
template <>
struct Bits<device::bf16> {
  static constexpr unsigned one[2] = {0x3f803f80u, 0x3f803f80u}, minus_zero[2] = {0x80008000u, 0x80008000u};
};
template <>
struct Bits<float> {
  static constexpr unsigned one[2] = {0x3f800000u, 0x3f800000u}, minus_zero[2] = {0x80000000u, 0x80000000u};
};
template <>
struct Bits<double> {
  static constexpr unsigned one[2] = {0u, 0x3ff00000u}, minus_zero[2] = {0u, 0x80000000u};
};
struct alignas(16) Words {
  unsigned at[8];
};
constexpr Words repeat(const unsigned (&w)[2]) { return {{w[0], w[1], w[0], w[1], w[0], w[1], w[0], w[1]}}; }
template <class P>
__device__ const Words kOne = repeat(Bits<P>::one);
template <class P>
__device__ const Words kMinusZero = repeat(Bits<P>::minus_zero);

template <class P>
__device__ inline Parameter<P> weight_or_one(const P* weight) {
  return {weight, reinterpret_cast<const P*>(&kOne<P>)};
}
template <class P>
__device__ inline Parameter<P> bias_or_zero(const P* bias) {
  return {bias, reinterpret_cast<const P*>(&kMinusZero<P>)};
}

// How many of a row's elements a warp of the team holds, Vectors a thread.
template <int W, int Vectors>
__device__ inline int warp_elements(int vectors, int team, int warp) {
  int count = 0;
#pragma unroll
  for (int g = 0; g < Vectors; ++g) count += min(max(vectors - g * team - warp * kWarp, 0), kWarp);
  return count * W;
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
