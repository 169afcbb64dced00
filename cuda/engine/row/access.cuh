#pragma once
// Loads and stores of a row's vectors. Vector i holds the elements [i·W, (i + 1)·W) of the row. Which thread has an
// element, and with it the order of a row's sums, depends on the length of the row alone, and not on its address.
#include "device/vector.cuh"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

// The numbers of the vectors that a lane has: first, first + lanes, first + 2·lanes, ... kLanes: the lanes of a team within
// a warp, or 0 for a power of two that is known when the kernel runs.
template <int kLanes>
struct LaneVectors {
  int first, lane, team_lanes;
  __device__ int lanes() const { return kLanes == 0 ? team_lanes : kLanes; }
  __device__ int number(int g) const { return first + g * lanes(); }
  // Whether vector g begins behind the last of n elements. of_lane: this lane's vector. If not, the vectors of all lanes
  // of the warp, and only for words: a branch of single lanes takes longer than the arithmetic on a vector without powers.
  __device__ bool is_behind(int g, int width, int n, bool of_lane) const {
    if (of_lane) return number(g) * width >= n;
    return width <= 2 && kLanes == 32 && (number(g) - lane) * width >= n;
  }
  __device__ bool is_last_lane() const { return lane == lanes() - 1; }
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
// 2, a word, and words that begin at an odd half are made from two aligned words of neighbouring lanes. All other rows
// consist of whole, aligned vectors.
template <bool kWhole, class T>
constexpr bool kJoinsWords = !kWhole && sizeof(T) == 2;

// How a lane's words lie in a row of n halves. In a row at an odd half, word i has the high half of aligned word i,
// which begins a half earlier, and the low half of aligned word i + 1, which the next lane has. Halves that no aligned
// word of the lane has are moved by themselves: the row's last one, and those at both ends of a warp's words.
struct HalfWords {
  unsigned shift;     // 1: the row begins at an odd half
  unsigned selector;  // of __byte_perm(): the word, from an aligned word and the next one
  int single;         // which of the lane's words has a half by itself at its end; -1: none
  bool any_shift;     // a row of the warp begins at an odd half

  template <int kVectors, bool kAligned = false, int kLanes, class T>
  static __device__ HalfWords of(const T* row, int n, const LaneVectors<kLanes>& own) {
    HalfWords words;
    words.shift = kAligned ? 0 : reinterpret_cast<uintptr_t>(row) / 2 % 2;
    words.selector = words.shift ? 0x5432 : 0x3210;
    words.any_shift = !kAligned && __any_sync(~0u, words.shift);
    const int last = own.number(kVectors - 1);
    int i = n <= 0 || n % 2 == static_cast<int>(words.shift) ? -1 : (n - 1) / 2;  // the word with the row's last half
    if (words.shift && own.is_last_lane() && 2 * last + 1 < n) i = last;
    const bool has = i >= own.first && i <= last && ((i - own.first) & (own.lanes() - 1)) == 0;
    words.single = has ? (i - own.first) / own.lanes() : -1;
    return words;
  }
};

// Reads a lane's vectors of the n elements at `row`, which begins at a word if kAligned. `padding` takes the place of
// the element behind the last one in its vector. Vectors behind the last element are 0 in rows of whole vectors and of
// words, and `padding` in others. Every lane of the warp calls it.
template <bool kWhole, int W, bool kAligned = false, int kVectors, class T, int kLanes>
__device__ inline void load_vectors(Vector<T, W> (&v)[kVectors], const T* row, int n, const LaneVectors<kLanes>& own,
                                    accumulate_t<T> padding) {
  const int left = n - own.first * W;
  if constexpr (kWhole) {
    const auto* vectors = reinterpret_cast<const Vector<T, W>*>(row) + own.first;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      v[g] = {};
      if (g * own.lanes() * W < left) v[g] = vectors[g * own.lanes()];
    }
  } else if constexpr (!kJoinsWords<kWhole, T>) {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
#pragma unroll
      for (int k = 0; k < W; ++k) {
        const int at = g * own.lanes() * W + k;
        v[g].at[k] = T(padding);
        if (at < left) v[g].at[k] = row[own.first * W + at];
      }
    }
  } else {
    static_assert(W == 2);
    const auto words = HalfWords::of<kVectors, kAligned>(row, n, own);
    const T* from = row + own.first * W - words.shift;
    const int words_left = left + static_cast<int>(words.shift) - 1;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int at = g * own.lanes() * W;
      unsigned word = 0;
      if (at < words_left && (g > 0 || from >= row)) word = *reinterpret_cast<const unsigned*>(from + at);
      if (g == 0 && from < row && left > 0) word = static_cast<unsigned>(row->bits) << 16;
      v[g].pair[0] = word;
    }
    unsigned end = 0;
    if (words.single >= 0) end = row[own.number(words.single) * W + words.shift].bits << 16 * words.shift;
    if (words.any_shift) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) {
        // Lane 0 gives its word g + 1, which follows the last lane's word g. The last g has none.
        const unsigned given = own.lane > 0       ? v[g].pair[0]
                               : g + 1 < kVectors ? v[g + 1 < kVectors ? g + 1 : g].pair[0]
                                                  : 0;
        const unsigned next = __shfl_sync(~0u, given, own.is_last_lane() ? 0 : own.lane + 1, own.lanes());
        v[g].pair[0] = __byte_perm(v[g].pair[0], next, words.selector);
      }
    }
    // The word with the row's last element has nothing behind it, so that the bits are 0 there.
    const unsigned behind = static_cast<unsigned>(device::narrow<T>(padding).bits) << 16;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      if (g == words.single) v[g].pair[0] |= end;
      if (g * own.lanes() * W + 1 == left) v[g].pair[0] |= behind;
    }
  }
}

// Writes the vectors of the n elements at `row`: put() a lane's vectors one by one, then finish(). Every lane of the
// warp calls both.
template <bool kWhole, int W, int kVectors, class T, int kLanes>
class VectorStore {
  using V = Vector<T, W>;

 public:
  __device__ VectorStore(T* row, int n, const LaneVectors<kLanes>& own)
      : to_(row + own.first * W), left_(n - own.first * W), own_(own) {
    if constexpr (kJoinsWords<kWhole, T>) words_ = HalfWords::of<kVectors>(row, n, own);
  }

  __device__ void put(int g, const V& v) {
    const int at = g * own_.lanes() * W;
    if constexpr (kWhole) {
      if (at < left_) *reinterpret_cast<V*>(to_ + at) = v;
    } else if constexpr (!kJoinsWords<kWhole, T>) {
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (at + k < left_) to_[at + k] = v.at[k];
    } else {
      // A word that begins at an odd half is written as the aligned word with its first half and the second half of the
      // word before.
      const unsigned word = v.pair[0];
      unsigned aligned = word;
      if (words_.any_shift) {
        const unsigned before = __shfl_sync(~0u, own_.is_last_lane() ? earlier_ : word,
                                            own_.lane == 0 ? own_.lanes() - 1 : own_.lane - 1, own_.lanes());
        aligned = __byte_perm(word, before, words_.shift ? 0x1076 : 0x3210);
      }
      const bool is_first_half = g == 0 && own_.lane == 0 && words_.shift;
      if (at + 1 < left_ + static_cast<int>(words_.shift) && !is_first_half)
        *reinterpret_cast<unsigned*>(to_ + at - words_.shift) = aligned;
      if (is_first_half && left_ > 0) to_[at] = {static_cast<unsigned short>(word)};
      if (g == words_.single) single_ = word;
      earlier_ = word;
    }
  }

  __device__ void finish() {
    if constexpr (kJoinsWords<kWhole, T>)
      if (words_.single >= 0)
        to_[words_.single * own_.lanes() * W + words_.shift] = {
            static_cast<unsigned short>(single_ >> 16 * words_.shift)};
  }

 private:
  T* to_;
  int left_;
  LaneVectors<kLanes> own_;
  HalfWords words_;
  unsigned earlier_ = 0, single_ = 0;  // the word of the last put(); the word of which finish() writes one half
};

}  // namespace fastops::FASTOPS_ARCH
