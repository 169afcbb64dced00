#pragma once
// What the forward and the backward of the norms share. Several short rows go through each pass together, so that their
// sums are finished together; a long row goes in segments, which stay in L1 from pass to pass.
#include "kernels/norm.h"
#include "kernels/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

template <class A>
constexpr int64_t kSegment = kNormSegmentBytes / static_cast<int64_t>(sizeof(A));

constexpr int64_t kBlockVectors = 64;  // summed apart, then added: rounding errors grow with n / block, not n

// A whole vector, or the first lanes at the end of a row.
struct whole {};
struct first {
  int64_t count;
};

template <class T>
FASTOPS_INLINE vec_t<T> load(const T* p, whole) {
  return load(p);
}
template <class T>
FASTOPS_INLINE vec_t<T> load(const T* p, first part) {
  return load_first(p, part.count);
}
template <class T>
FASTOPS_INLINE void store(T* p, whole, vec_t<T> v) {
  store(p, v);
}
template <class T>
FASTOPS_INLINE void store(T* p, first part, vec_t<T> v) {
  store_first(p, part.count, v);
}
template <class V>
FASTOPS_INLINE V keep(V v, whole) {
  return v;
}
template <class V>
FASTOPS_INLINE V keep(V v, first part) {
  return keep_first(v, part.count);
}

// v as it is when stored and read again.
template <class T>
FASTOPS_INLINE vec_t<T> rounded(vec_t<T> v) {
  T lanes[simd<accumulate_t<T>>::size];
  store(lanes, v);
  return load(lanes);
}

// Outputs of so many bytes in all go past the caches: what they would push out is then worth more than they are, and a
// line that is not kept need not be read before it is written.
constexpr int64_t kStreamBytes = 16 << 20;

#if defined(__x86_64__)
template <class T>
FASTOPS_INLINE void stream(T* p, vec_t<T> v) {  // p on a multiple of the bytes that are written
  T lanes[simd<accumulate_t<T>>::size];
  store(lanes, v);
  if constexpr (sizeof(lanes) == 8) {
    _mm_stream_si64(reinterpret_cast<long long*>(p), load_bytes<long long>(lanes));
  } else if constexpr (sizeof(lanes) == 16) {
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
FASTOPS_INLINE void stream(T* p, vec_t<T> v) {
  store(p, v);
}
FASTOPS_INLINE void end_of_stream() {}
#endif

// Whether rows of n elements, dense from `output` on, are to be and can be streamed: in whole lines.
template <class T>
FASTOPS_INLINE bool streams(const void* output, int64_t rows, int64_t n) {
  const int64_t bytes = n * int64_t{sizeof(T)};
  return rows * bytes >= kStreamBytes && bytes % 64 == 0 && reinterpret_cast<uintptr_t>(output) % 64 == 0;
}

template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, whole, vec_t<T> v) {
  if constexpr (Stream)
    stream(p, v);
  else
    store(p, v);
}
template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, first part, vec_t<T> v) {
  store(p, part, v);
}

// f(i, part) for the vectors of n elements.
template <class V, class F>
FASTOPS_INLINE void for_vectors(int64_t n, F f) {
  constexpr int64_t W = sizeof(V) / sizeof(V{}[0]);
  int64_t i = 0;
  for (; i + W <= n; i += W) f(i, whole{});
  if (i < n) f(i, first{n - i});
}

// The lanes' sums of the Sums vectors that f(i, part, terms) sets for the vectors of n elements.
template <class V, int Sums>
struct lane_sums {
  V values[Sums];
};

template <class V, int Sums, class F>
FASTOPS_INLINE lane_sums<V, Sums> sum_vectors(int64_t n, F f) {
  constexpr int64_t W = sizeof(V) / sizeof(V{}[0]);
  constexpr int kChains = Sums == 1 ? 4 : 2;  // with the sums, enough to hide the latency of an addition
  lane_sums<V, Sums> total = {};
  V terms[Sums];
  int64_t i = 0;
  while (n - i >= kChains * W) {
    const int64_t stop = n - i < kBlockVectors * W ? n : i + kBlockVectors * W;
    V chains[kChains][Sums] = {};
    for (; i + kChains * W <= stop; i += kChains * W) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        f(i + c * W, whole{}, terms);
        for (int k = 0; k < Sums; ++k) chains[c][k] += terms[k];
      }
    }
    for (int k = 0; k < Sums; ++k) {
      V all = chains[0][k] + chains[1][k];
      if constexpr (kChains == 4) all += chains[2][k] + chains[3][k];
      total.values[k] += all;
    }
  }
  for (; i + W <= n; i += W) {
    f(i, whole{}, terms);
    for (int k = 0; k < Sums; ++k) total.values[k] += terms[k];
  }
  if (i < n) {
    f(i, first{n - i}, terms);
    for (int k = 0; k < Sums; ++k) total.values[k] += terms[k];
  }
  return total;
}

// The sums of up to one vector's number of rows, a lane each; the same bits for one row alone.
template <class V>
struct row_sums {
  static constexpr int kRows = sizeof(V) / sizeof(V{}[0]);
  alignas(64) V of_row[kRows];
  FASTOPS_INLINE V finish(int64_t rows) {
    if (rows == 1) return V{} + sum_lanes(of_row[0]);
    for (int64_t r = rows; r < kRows; ++r) of_row[r] = V{};
    return sum_lanes_of_each(of_row);
  }
};

// weight + offset or bias, as numbers of the type that the kernel computes in; `missing` where there is none.
template <class A>
struct Parameter {
  const void* data;
  DType dtype;
  A missing, offset;

  // Elements [begin, begin + count): where they lie, or in `room`.
  __attribute__((noinline)) const A* at(int64_t begin, int64_t count, A* room) const {
    using V = typename simd<A>::vec;
    if (!data) {
      const V value = V{} + missing;
      for_vectors<V>(count, [&](int64_t i, auto) { store(room + i, value); });
      return room;
    }
    const A* found = room;
    dispatch(dtype, [&](auto t) {
      using P = typename decltype(t)::type;
      const P* p = static_cast<const P*>(data) + begin;
      if constexpr (sizeof(accumulate_t<P>) == sizeof(A)) {
        if constexpr (sizeof(P) == sizeof(A)) {
          if (offset == 0) {
            found = p;
            return;
          }
        }
        for_vectors<V>(count, [&](int64_t i, auto part) { store(room + i, load(p + i, part) + offset); });
      }
    });
    return found;
  }
};

template <class A>
struct Room {  // whole vectors, also behind the last element
  alignas(64) A values[kSegment<A>];
};

}  // namespace fastops::FASTOPS_ISA
