#pragma once
// What the norm kernels share. Which thread holds which element depends on n and the dtype alone, so a row's bits depend
// neither on its neighbours nor on alignment.
#include "device/math.cuh"
#include "device/reduce.cuh"
#include "device/vector.cuh"
#include "dispatch.cuh"
#include "kernels/norm.h"

namespace fastops::FASTOPS_ARCH {
namespace {

using device::accumulate_t;
using device::kVector;

constexpr int kWarpRows = 4;  // rows, each a warp's, in a block of the short-row kernels

// How the threads of a row divide it: `team` threads hold Groups vectors each, vector g of thread t at g·team + t.
// Index is int where a row fits registers, which keeps the arithmetic on indices short.
template <class T, class Index, bool Aligned>
struct Row {
  static constexpr int V = kVector<T>;
  Index n;
  int team, thread;

  __device__ Index start(int g) const { return (static_cast<Index>(g) * team + thread) * V; }

  template <class S>
  __device__ void load(const S* p, int g, accumulate_t<S> (&x)[V]) const {
    const Index i = start(g);
    if (Aligned && i >= n) {
#pragma unroll
      for (int k = 0; k < V; ++k) x[k] = 0;
    } else {
      device::load<Aligned, V>(p + i, n - i, x);
    }
  }
  template <class S>
  __device__ void store(S* p, int g, const accumulate_t<S> (&x)[V]) const {
    const Index i = start(g);
    if (!Aligned || i < n) device::store<Aligned, V>(p + i, n - i, x);
  }
  __device__ bool holds(int g, int k) const { return start(g) + k < n; }
};

// Groups of vectors that each thread of a block has in a row too long for registers.
template <class T>
__device__ inline int groups_of(int64_t n) {
  const int64_t a_block = static_cast<int64_t>(kVector<T>) * blockDim.x;
  return static_cast<int>((n + a_block - 1) / a_block);
}

// Sum over the team of a row: a warp, or the block.
template <bool Warp, class A, int N>
__device__ inline void team_sum(A (&x)[N], A* scratch) {
  if constexpr (Warp)
    device::warp_sum(x);
  else
    device::block_sum(x, scratch);
}

// Factors of a vector of columns: weight + weight_offset. Past the end of the row they do not matter.
template <class T, class P, class Index, bool Aligned>
__device__ inline void load_weight(const Row<T, Index, Aligned>& own, const P* weight, accumulate_t<P> offset, int g,
                                   accumulate_t<P> (&w)[kVector<T>]) {
  own.load(weight, g, w);
#pragma unroll
  for (int k = 0; k < kVector<T>; ++k) w[k] += offset;
}

// ---- host --------------------------------------------------------------------------------------------------------------

struct Plan {
  int groups;  // vectors a thread; 0: the row does not fit registers
  bool warp;
  int threads;
};

template <class T>
int64_t vectors_of(int64_t n) {
  return ceil_div(n, kVector<T>);
}

// A row pointer that is there, or not needed, allows whole vectors.
template <class T>
bool rows_aligned(const void* p, int64_t stride) {
  return !p || (aligned16(p) && stride * sizeof(T) % 16 == 0);
}

template <int... Values, class F>
int dispatch_groups(int groups, F f) {
  int result = 0;
  ((groups == Values ? (result = f(std::integral_constant<int, Values>{}), 0) : 0), ...);
  return result;
}

}  // namespace
}  // namespace fastops::FASTOPS_ARCH
