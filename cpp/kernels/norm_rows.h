#pragma once
// What the forward and the backward of the norms share. Several short rows go through each pass together, so that their
// sums are finished together; a long row goes in segments, which stay in L1 from pass to pass.
#include "kernels/norm.h"
#include "kernels/parameter.h"
#include "plan/cpu.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

template <class A>
constexpr int64_t kSegment = plan::cpu::kSegmentBytes / static_cast<int64_t>(sizeof(A));

constexpr int64_t kBlockVectors = 64;  // summed apart, then added: rounding errors grow with n / block, not n

// v as it is when stored and read again.
template <class T>
FASTOPS_INLINE unit_t<T> rounded(unit_t<T> v) {
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  return load(lanes, whole{});
}

// Inputs of up to so many bytes are taken to be in the caches.
constexpr int64_t kCachedBytes = 8 << 20;

#if defined(__x86_64__)
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {  // p on a multiple of the bytes that are written
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  if constexpr (sizeof(lanes) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), load_bytes<__m128i>(lanes));
#if FASTOPS_VECTOR_BYTES >= 32
  } else if constexpr (sizeof(lanes) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), load_bytes<__m256i>(lanes));
#endif
#if FASTOPS_VECTOR_BYTES >= 64
  } else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), load_bytes<__m512i>(lanes));
#endif
  }
}
FASTOPS_INLINE void end_of_stream() { _mm_sfence(); }
#else
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {
  store(p, whole{}, v);
}
FASTOPS_INLINE void end_of_stream() {}
#endif

// Whether rows of n elements, dense from `output` on, are to be and can be streamed: in whole lines.
template <class T>
FASTOPS_INLINE bool streams(const void* output, int64_t rows, int64_t n) {
  const int64_t bytes = n * int64_t{sizeof(T)};
  return rows * bytes >= plan::cpu::kStreamBytes && bytes % 64 == 0 && reinterpret_cast<uintptr_t>(output) % 64 == 0;
}

template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, whole, unit_t<T> v) {
  if constexpr (Stream)
    stream(p, v);
  else
    store(p, whole{}, v);
}
template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, first part, unit_t<T> v) {
  store(p, part, v);
}

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

// The sums of up to one vector's number of rows; the same bits for one row alone.
template <class A>
struct row_sums {
  using V = typename simd<A>::vec;
  static constexpr int64_t kRows = simd<A>::size;
  alignas(64) V of_row[kRows];
  FASTOPS_INLINE void finish(int64_t rows, A* to) {
    if (rows <= 4) {  // a tree for each is less than the tree for all
      for (int64_t r = 0; r < rows; ++r) to[r] = sum_lanes(of_row[r]);
      return;
    }
    for (int64_t r = rows; r < kRows; ++r) of_row[r] = V{};
    store(to, sum_lanes_of_each(of_row));
  }
};

// Parameters of a half type are widened once for all rows up to so many elements; more would push the rows out of L1.
constexpr int64_t kHeldParameters = 1024;

template <class A>
struct Room {  // whole vectors, also behind the last element
  alignas(64) A values[kSegment<A>];
};

}  // namespace fastops::FASTOPS_ISA
