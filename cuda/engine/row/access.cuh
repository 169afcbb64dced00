#pragma once
// Loads and stores of a row's vectors. Vector i holds the elements [i·W, (i + 1)·W) of the row. Which thread has an
// element, and with it the order of a row's sums, depends on the length of the row alone, and not on its address.
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

// The numbers of the vectors that a lane has: first, first + lanes, first + 2·lanes, ... kLanes: the lanes of a team within
// a warp, or 0 for a number that is known when the kernel runs.
template <int kLanes>
struct LaneVectors {
  int first, lane, team_lanes;
  __device__ int lanes() const { return kLanes == 0 ? team_lanes : kLanes; }
  __device__ int number(int g) const { return first + g * lanes(); }
  // Whether vector g of every lane lies behind the n elements, or within them. All teams of a warp have the same answer.
  __device__ bool are_behind(int g, int width, int n) const { return (number(g) - lane) * width >= n; }
  __device__ bool are_within(int g, int width, int n) const { return (number(g + 1) - lane) * width <= n; }
};

// A vector of T in which every element is x.
template <class T, int W>
__device__ inline Vector<T, W> filled(accumulate_t<T> x) {
  accumulate_t<T> all[W];
#pragma unroll
  for (int k = 0; k < W; ++k) all[k] = x;
  return device::narrow_all<T>(all);
}

// The rows of an operator that has halves among what it reads and writes may have any length at any address. Then W is
// 2, a word; a row that begins at an odd half is read and written by halves. All other rows consist of whole, aligned
// vectors.
template <bool kWhole, class T>
constexpr bool kAreWords = !kWhole && sizeof(T) == 2;

template <class T>
__device__ inline bool begins_at_word(const T* row) {
  return reinterpret_cast<uintptr_t>(row) % 4 == 0;
}

// Reads a lane's vectors of the n elements at `row`, which begins at a word if kAligned. `padding` takes the place of the
// elements behind the last one, but vectors behind it are 0 in rows of whole vectors.
template <bool kWhole, int W, bool kAligned = false, int kVectors, class T, int kLanes>
__device__ inline void load_vectors(Vector<T, W> (&v)[kVectors], const T* row, int n, const LaneVectors<kLanes>& own,
                                    accumulate_t<T> padding) {
  const T* from = row + own.first * W;
  const int left = n - own.first * W, step = own.lanes() * W;
  if constexpr (kWhole) {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      v[g] = {};
      if (g * step < left) v[g] = *reinterpret_cast<const Vector<T, W>*>(from + g * step);
    }
  } else if constexpr (!kAreWords<kWhole, T>) {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        v[g].at[k] = T(padding);
        if (g * step + k < left) v[g].at[k] = from[g * step + k];
      }
    }
  } else {
    static_assert(W == 2);
    if (own.are_within(kVectors - 1, W, n) && (kAligned || begins_at_word(row))) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) v[g].pair[0] = *reinterpret_cast<const unsigned*>(from + g * step);
      return;
    }
    // All loads come before the first word is joined, so that no load waits for another.
    unsigned first[kVectors], second[kVectors];
    if (own.are_within(kVectors - 1, W, n)) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        first[g] = from[g * step].bits;
        second[g] = from[g * step + 1].bits;
      }
    } else {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        first[g] = second[g] = device::narrow<T>(padding).bits;
        if (g * step < left) first[g] = from[g * step].bits;
        if (g * step + 1 < left) second[g] = from[g * step + 1].bits;
      }
    }
#pragma unroll
    for (int g = 0; g < kVectors; ++g) v[g].pair[0] = first[g] | second[g] << 16;
  }
}

// Writes the vectors of the n elements at `row`: put() a lane's vectors one by one, then finish(), which writes words.
template <bool kWhole, int W, int kVectors, class T, int kLanes>
class VectorStore {
  using V = Vector<T, W>;
  static constexpr bool kKeeps = kAreWords<kWhole, T>;

 public:
  __device__ VectorStore(T* row, int n, const LaneVectors<kLanes>& own)
      : row_(row), to_(row + own.first * W), n_(n), left_(n - own.first * W), own_(own) {}

  __device__ void put(int g, const V& v) {
    const int at = g * own_.lanes() * W;
    if constexpr (kWhole) {
      if (at < left_) *reinterpret_cast<V*>(to_ + at) = v;
    } else if constexpr (!kKeeps) {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (at + k < left_) to_[at + k] = v.at[k];
    } else {
      kept_[g] = v.pair[0];
    }
  }

  __device__ void finish() {
    if constexpr (kKeeps) {
      if (begins_at_word(row_))
        write_words();
      else if constexpr (kLanes == 32)
        write_shifted();
      else
        write_halves();
    }
  }

 private:
  __device__ void write_words() {
    const int step = own_.lanes() * W;
    if (own_.are_within(kVectors - 1, W, n_)) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) *reinterpret_cast<unsigned*>(to_ + g * step) = kept_[g];
      return;
    }
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      if (own_.are_behind(g, W, n_)) break;
      if (g * step + 1 < left_) *reinterpret_cast<unsigned*>(to_ + g * step) = kept_[g];
      if (g * step + 1 == left_) to_[g * step] = {static_cast<unsigned short>(kept_[g])};
    }
  }
  // Writes words that begin half a word before the lane's. The words of a warp are contiguous, from one vector to the next.
  __device__ void write_shifted() {
    unsigned before = 0;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      T* to = to_ + g * 32 * W;
      const int left = left_ - g * 32 * W;
      const unsigned around = __shfl_sync(~0u, kept_[g], (own_.lane + 31) % 32);
      const unsigned both = __byte_perm(own_.lane == 0 ? before : around, kept_[g], 0x5432);
      before = around;
      if (g == 0 && own_.lane == 0) {
        if (left > 0) *to = {static_cast<unsigned short>(kept_[g])};
      } else if (left > 0) {
        *reinterpret_cast<unsigned*>(to - 1) = both;
      }
      const bool is_last = left == 2 || (g == kVectors - 1 && own_.lane == 31 && left > 2);
      if (is_last) to[1] = {static_cast<unsigned short>(kept_[g] >> 16)};
    }
  }
  __device__ void write_halves() {
    const int step = own_.lanes() * W;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      if (own_.are_behind(g, W, n_)) break;
      if (g * step < left_) to_[g * step] = {static_cast<unsigned short>(kept_[g])};
      if (g * step + 1 < left_) to_[g * step + 1] = {static_cast<unsigned short>(kept_[g] >> 16)};
    }
  }

  T *row_, *to_;
  int n_, left_;
  LaneVectors<kLanes> own_;
  unsigned kept_[kKeeps ? kVectors : 1];
};

}  // namespace fastops::FASTOPS_ARCH
