#pragma once
// Sums over a row, in a fixed order.
#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

// Blocks of vectors are summed apart, and so are groups of blocks: rounding errors grow with the cube root of n, about.
constexpr int64_t kBlockVectors = 64, kGroupBlocks = 32;

template <class A, int Sums>
struct sums {
  A values[Sums];
};

// For i over the row, f(i, count) returns Sums vectors whose lanes [0, count) count and the rest are zero.
template <class T, int Sums, class F>
FASTOPS_INLINE sums<accumulate_t<T>, Sums> sum_row(int64_t n, F f) {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  constexpr int W = simd<A>::size;
  V total[Sums] = {}, group[Sums] = {};
  int64_t blocks = 0;
  for (int64_t block = 0; block < n; block += kBlockVectors * W) {
    const int64_t stop = n - block < kBlockVectors * W ? n : block + kBlockVectors * W;
    V even[Sums] = {}, odd[Sums] = {};  // two chains hide the latency of an addition
    int64_t i = block;
    for (; i + 2 * W <= stop; i += 2 * W) {
      V a[Sums], b[Sums];
      f(i, int64_t{W}, a);
      f(i + W, int64_t{W}, b);
      for (int k = 0; k < Sums; ++k) {
        even[k] += a[k];
        odd[k] += b[k];
      }
    }
    for (; i < stop; i += W) {
      V a[Sums];
      f(i, stop - i < W ? stop - i : W, a);
      for (int k = 0; k < Sums; ++k) even[k] += a[k];
    }
    for (int k = 0; k < Sums; ++k) group[k] += even[k] + odd[k];
    if (++blocks % kGroupBlocks != 0) continue;
    for (int k = 0; k < Sums; ++k) {
      total[k] += group[k];
      group[k] = V{};
    }
  }
  for (int k = 0; k < Sums; ++k) total[k] += group[k];
  sums<A, Sums> result;
  for (int k = 0; k < Sums; ++k) result.values[k] = sum_lanes(total[k]);
  return result;
}

// The first element of a row, as kernels compute with it.
template <class T>
FASTOPS_INLINE accumulate_t<T> first_of(const T* row) {
  return load_first(row, 1)[0];
}

}  // namespace fastops::FASTOPS_ISA
