#pragma once
// Sums over the elements of a row in a fixed order: in lanes, in chains that hide an addition's latency, in blocks.
#include "kernels/units.h"
#include "plan/cpu.h"

namespace fastops::FASTOPS_ISA {

template <class A>
constexpr int64_t kSegment = plan::cpu::kSegmentBytes / static_cast<int64_t>(sizeof(A));

template <class A>
struct Room {  // whole vectors, also behind the last element
  alignas(64) A values[kSegment<A>];
};

constexpr int64_t kBlockVectors = 64;  // summed apart, then added: rounding errors grow with n / block, not n

// The lanes' sums of the Sums units that f(i, part, terms) sets for the units of n elements.
template <class V, int Sums>
struct lane_sums {
  V values[Sums];
};

template <class T, int Sums, class F>
FASTOPS_INLINE lane_sums<vec_t<T>, Sums> sum_units(int64_t n, F f) {
  using U = unit_t<T>;
  constexpr int64_t N = kUnit<T>, block = kBlockVectors * simd<accumulate_t<T>>::size;
  constexpr int kChains = sizeof(T) == 2 ? 2 : 4;  // enough to hide the latency of an addition
  U total[Sums] = {}, terms[Sums];
  int64_t i = 0;
  while (n - i >= kChains * N) {
    const int64_t stop = n - i < block ? n : i + block;
    U chains[kChains][Sums] = {};
    for (; i + kChains * N <= stop; i += kChains * N) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        f(i + c * N, whole{}, terms);
        for (int k = 0; k < Sums; ++k) chains[c][k] = chains[c][k] + terms[k];
      }
    }
    for (int k = 0; k < Sums; ++k) {
      U all = chains[0][k] + chains[1][k];
      if constexpr (kChains == 4) all = all + (chains[2][k] + chains[3][k]);
      total[k] = total[k] + all;
    }
  }
  for (; i + N <= n; i += N) {
    f(i, whole{}, terms);
    for (int k = 0; k < Sums; ++k) total[k] = total[k] + terms[k];
  }
  if (i < n) {
    f(i, first{n - i}, terms);
    for (int k = 0; k < Sums; ++k) total[k] = total[k] + terms[k];
  }
  lane_sums<vec_t<T>, Sums> sums;
  for (int k = 0; k < Sums; ++k) sums.values[k] = fold(total[k]);
  return sums;
}

// The sums, or what else `join` makes of lanes, of up to one vector's number of rows; the same bits for one row alone.
template <class A>
struct row_sums {
  using V = typename simd<A>::vec;
  static constexpr int64_t kRows = simd<A>::size;
  alignas(64) V of_row[kRows];
  // Called once for many rows: inlined at each place it is most of a short row's code.
  template <class F = plus>
  __attribute__((noinline)) void finish(int64_t rows, A* to, F join = {}) {
    if (rows <= 4) {  // a tree for each is less than the tree for all
      for (int64_t r = 0; r < rows; ++r) to[r] = join_lanes(join, of_row[r]);
      return;
    }
    for (int64_t r = rows; r < kRows; ++r) of_row[r] = V{};
    store(to, join_lanes_of_each(join, of_row));
  }
};

}  // namespace fastops::FASTOPS_ISA
