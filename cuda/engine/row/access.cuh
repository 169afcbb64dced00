#pragma once
// How a row's vectors are read and written. Vector i has elements [i·W, (i + 1)·W) of the row at any alignment: which thread
// has an element, and with it the order of a row's sums, depends on neither its address nor the tensor's strides.
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

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
  // By powers of two, since registers cannot be indexed.
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

// Elements of an unaligned row that lie in the aligned vector where it begins; of an aligned one W.
template <int W, class T>
__device__ inline int elements_ahead(const T* row) {
  constexpr int kBytes = sizeof(Vector<T, W>);
  return (kBytes - static_cast<int>(reinterpret_cast<uintptr_t>(row) % kBytes)) / static_cast<int>(sizeof(T));
}

// Which of a row's vectors a lane has: first, first + lanes, ...; the next lane has those behind them. `lanes`: a power of two.
struct Turns {
  int first, lane, lanes;
};

// Reads a lane's vectors of the n elements at `row`; padding stands for what lies behind the last element. Every lane of the
// warp calls it. Aligned: the vectors are whole and aligned.
template <bool Aligned, int W, int kVectors, class T>
__device__ inline void load_vectors(Vector<T, W> (&v)[kVectors], const T* row, int n, const Turns& turns,
                                    accumulate_t<T> padding) {
  using V = Vector<T, W>;
  if constexpr (Aligned) {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int i = turns.first + g * turns.lanes;
      if (i * W >= n) break;
      v[g] = reinterpret_cast<const V*>(row)[i];
    }
  } else {
    // By aligned vectors, which begin W - ahead elements early. The one with the row's end is read element by element, so
    // that nothing behind a tensor is read.
    const int ahead = elements_ahead<W>(row);
    const V* aligned = reinterpret_cast<const V*>(row + ahead - W);
    const int whole = (n - ahead) / W + (n >= ahead);  // aligned vectors before the row's end
    accumulate_t<T> x[W];
#pragma unroll
    for (int k = 0; k < W; ++k) x[k] = padding;
    const V empty = device::narrow_all<T>(x);
    const bool is_last = turns.lane == turns.lanes - 1;
    const int behind = turns.first + (kVectors - 1) * turns.lanes + 1;
    V next_turn = empty, end = empty;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int i = turns.first + g * turns.lanes;
      v[g] = empty;
      if (i < whole) v[g] = aligned[i];
    }
    if (is_last && behind < whole) next_turn = aligned[behind];
    const bool has_end = (whole >= turns.first && whole < behind && ((whole - turns.first) & (turns.lanes - 1)) == 0) ||
                         (is_last && whole == behind);
    if (has_end) {
      const int begin = (whole - 1) * W + ahead;
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (begin + k >= 0 && begin + k < n) x[k] = device::widen(row[begin + k]);
      end = device::narrow_all<T>(x);
#pragma unroll
      for (int g = 0; g < kVectors; ++g)
        if (turns.first + g * turns.lanes == whole) v[g] = end;
      if (behind == whole) next_turn = end;
    }
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      V next;
#pragma unroll
      for (int k = 0; k < kWords<V>; ++k) {
        const bool gives_next = g + 1 < kVectors && turns.lane == 0;
        const unsigned word = gives_next ? words_of(v[g + 1 < kVectors ? g + 1 : g])[k] : words_of(v[g])[k];
        words_of(next)[k] = __shfl_sync(~0u, word, is_last ? 0 : turns.lane + 1, turns.lanes);
        if (g + 1 == kVectors && is_last) words_of(next)[k] = words_of(next_turn)[k];
      }
      v[g] = bytes_from<sizeof(T)>(v[g], next, (W - ahead) * sizeof(T));
    }
  }
}

// Writes the vectors of the n elements at `row` that some neighbouring lanes have, turn by turn: vector i by one lane, i + 1 by the
// next, by the first one in the next turn. What crosses the bounds of aligned vectors goes to the lane that has the vector behind it:
// stores of single elements, which are eight times as many, are left for the first and the last vector alone.
template <bool Aligned, int W, class T>
class VectorStore {
  using V = Vector<T, W>;

 public:
  __device__ VectorStore(T* row, int n, const Turns& turns)
      : row_(row), n_(n), turns_(turns), ahead_(Aligned ? W : elements_ahead<W>(row)) {}

  // Every lane of the warp calls it; those without a vector to write are not `live`.
  __device__ void put(int i, bool live, bool first_turn, bool last_turn, const V& v) {
    if constexpr (Aligned) {
      if (live) reinterpret_cast<V*>(row_)[i] = v;
    } else {
      const bool is_last = turns_.lane == turns_.lanes - 1;
      const int from = turns_.lane == 0 ? turns_.lanes - 1 : turns_.lane - 1;
      V before;
#pragma unroll
      for (int k = 0; k < kWords<V>; ++k)
        words_of(before)[k] =
            __shfl_sync(~0u, is_last ? words_of(turn_before_)[k] : words_of(v)[k], from, turns_.lanes);
      turn_before_ = v;
      if (!live) return;
      T* p = row_ + i * W;
      const int left = n_ - i * W;
      const bool whole = left >= W, joins = whole && (ahead_ == W || !(first_turn && turns_.lane == 0));
      const bool joined = left >= 2 * W && !(last_turn && is_last);
      if (joins)
        *reinterpret_cast<V*>(p + ahead_ - W) = ahead_ == W ? v : bytes_from<sizeof(T)>(before, v, ahead_ * sizeof(T));
      const int begin = joins ? ahead_ : 0, end = !whole ? left : joined ? ahead_ : W;
      if (begin >= end) return;
      accumulate_t<T> x[W];
      device::widen(v, x);
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (k >= begin && k < end) p[k] = device::narrow<T>(x[k]);
    }
  }

 private:
  T* row_;
  int n_;
  Turns turns_;
  int ahead_;
  V turn_before_ = {};
};

}  // namespace fastops::FASTOPS_ARCH
