#pragma once
// Loads and stores of one vector for each lane of a warp, in rows that may begin at any element. Vector i holds the
// elements [i·W, (i + 1)·W) of the row. Unaligned rows are moved by aligned vectors, whose bytes are shifted in
// registers.
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

// Neighbouring lanes, a power of two, that have neighbouring vectors of a row.
struct RowLane {
  int vector, lane, lanes;  // vector: the number of the lane's
  __device__ bool is_last() const { return lane == lanes - 1; }
};

template <class V>
constexpr int kWords = sizeof(V) / 4;

template <class V>
__device__ inline unsigned* words_of(V& v) {
  return reinterpret_cast<unsigned*>(&v);
}
template <class V>
__device__ inline const unsigned* words_of(const V& v) {
  return reinterpret_cast<const unsigned*>(&v);
}
template <class V>
__device__ inline V shuffle_vector(const V& v, int lane, int lanes) {
  V other;
#pragma unroll
  for (int k = 0; k < kWords<V>; ++k) words_of(other)[k] = __shfl_sync(~0u, words_of(v)[k], lane, lanes);
  return other;
}

// Bytes [begin, begin + sizeof(V)) of a vector and the one behind it; begin is less than a vector.
template <int ElementBytes, class V>
__device__ inline V bytes_from(const V& first, const V& second, unsigned begin) {
  constexpr int N = kWords<V>;
  unsigned w[2 * N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    w[k] = words_of(first)[k];
    w[N + k] = words_of(second)[k];
  }
  // The words move by powers of two, because registers cannot be indexed.
#pragma unroll
  for (int step = N / 2; step > 0; step /= 2) {
    if (step * 4 % ElementBytes != 0) break;
    const bool moved = (begin & (step * 4)) != 0;
#pragma unroll
    for (int k = 0; k < N + step; ++k) w[k] = moved ? w[k + step] : w[k];
  }
  V v;
#pragma unroll
  for (int k = 0; k < N; ++k)
    words_of(v)[k] = ElementBytes < 4 ? __funnelshift_r(w[k], w[k + 1], (begin & 3) * 8) : w[k];
  return v;
}

// How many elements of a row precede its first aligned vector. W if the row is aligned.
template <int W, class T>
__device__ inline int elements_ahead(const T* row) {
  constexpr int kBytes = sizeof(Vector<T, W>);
  return (kBytes - static_cast<int>(reinterpret_cast<uintptr_t>(row) % kBytes)) / static_cast<int>(sizeof(T));
}

// Reads the lane's vector of the n elements at `row`; elements behind the last one are 0. kAligned: vectors are whole
// and aligned. Every lane of the warp calls it.
template <bool kAligned, int W, class T>
__device__ inline Vector<T, W> load_vector(const T* row, int n, const RowLane& own) {
  using V = Vector<T, W>;
  const int i = own.vector;
  V v = {};
  if constexpr (kAligned) {
    if (i * W < n) v = reinterpret_cast<const V*>(row)[i];
    return v;
  } else {
    // Vector i lies in the aligned vectors i and i + 1, the first of which begins W - ahead elements before the row.
    // The one with the row's end is read by elements, so that nothing behind a tensor is read.
    const int ahead = elements_ahead<W>(row);
    const V* aligned = reinterpret_cast<const V*>(row + ahead - W);
    const int whole = (n - ahead) / W + (n >= ahead);  // aligned vectors before the row's end
    V behind = {};                                     // what the last lane needs, and no lane has
    if (i < whole) v = aligned[i];
    if (own.is_last() && i + 1 < whole) behind = aligned[i + 1];
    if (whole == i || (own.is_last() && whole == i + 1)) {
      accumulate_t<T> x[W] = {};
      const int begin = (whole - 1) * W + ahead;
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (begin + k >= 0 && begin + k < n) x[k] = device::widen(row[begin + k]);
      (whole == i ? v : behind) = device::narrow_all<T>(x);
    }
    V next = shuffle_vector(v, own.is_last() ? 0 : own.lane + 1, own.lanes);
    if (own.is_last()) next = behind;
    return bytes_from<sizeof(T)>(v, next, (W - ahead) * sizeof(T));
  }
}

// Writes the lane's vector of the n elements at `row` if `valid`. In unaligned rows each lane writes the aligned vector
// with the beginning of its own, and takes what lies before from the lane before. Single elements, which are eight
// times as many stores, are left for the first and the last lane. Every lane of the warp calls it.
template <bool kAligned, int W, class T>
__device__ inline void store_vector(T* row, int n, const RowLane& own, bool valid, const Vector<T, W>& v) {
  using V = Vector<T, W>;
  if constexpr (kAligned) {
    if (valid) reinterpret_cast<V*>(row)[own.vector] = v;
  } else {
    const int ahead = elements_ahead<W>(row);
    const V before = shuffle_vector(v, own.lane == 0 ? own.lanes - 1 : own.lane - 1, own.lanes);
    if (!valid) return;
    T* p = row + own.vector * W;
    const int left = n - own.vector * W;
    const bool whole = left >= W, joins = whole && (ahead == W || own.lane != 0);
    const bool joined = left >= 2 * W && !own.is_last();
    if (joins)
      *reinterpret_cast<V*>(p + ahead - W) = ahead == W ? v : bytes_from<sizeof(T)>(before, v, ahead * sizeof(T));
    const int begin = joins ? ahead : 0, end = !whole ? left : joined ? ahead : W;
    if (begin >= end) return;
    accumulate_t<T> x[W];
    device::widen(v, x);
#pragma unroll
    for (int k = 0; k < W; ++k)
      if (k >= begin && k < end) p[k] = device::narrow<T>(x[k]);
  }
}

}  // namespace fastops::FASTOPS_ARCH
