#pragma once
// Which way a loop goes. A load waits for stores before it whose addresses end in the same 12 bits, as if they were what it
// loads: where the output begins right behind an input modulo 4096, those are the stores of the steps before, unless the loop
// descends. That is where an output lies that was allocated right after an input of a power of two.
#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

FASTOPS_INLINE bool is_close_behind(const void* output, const void* input) {
  constexpr uintptr_t kPage = 4096, kClose = 512;
  const uintptr_t distance = reinterpret_cast<uintptr_t>(output) - reinterpret_cast<uintptr_t>(input);
  return distance % kPage - 1 < kClose - 1;  // not at 0
}

// Calls step(i, direction) for i = 0, N, 2·N, ... while i + N <= n, or for the same from the last to the first, and
// returns the first element behind them. `direction` is 1 or -1, and a constant.
template <int N, class F>
FASTOPS_INLINE int64_t for_steps(int64_t n, bool descend, F step) {
  const int64_t whole = n - n % N;
  if (descend)
    for (int64_t i = whole - N; i >= 0; i -= N) step(i, int64_t{-1});
  else
    for (int64_t i = 0; i < whole; i += N) step(i, int64_t{1});
  return whole;
}

}  // namespace fastops::FASTOPS_ISA
