#pragma once
// Rows that may start at any element, in words of 4 bytes, or one element if it is larger. The lanes of a warp take
// neighbouring words, at offsets that are constants in the code. A row of halves that starts within 4 bytes is read by single
// halves, or in words that begin a half earlier, and written in words to which two lanes give a half each. No lane touches
// what lies outside its row, and which elements a thread has depends on n alone.
#include "norm.cuh"

namespace fastops::FASTOPS_ARCH {

// Elements of a word.
template <class T>
constexpr int kWord = sizeof(T) == 2 ? 2 : 1;

// A thread's `Words` of a row, every Step-th; of these the last `Checked` may lie behind its end, or half behind it.
template <int Words, int Checked, int Step, int W>
struct Part {
  int at, left;  // the first one's element; how many elements there are from there on

  __device__ bool has(int g, int elements) const { return g < Words - Checked || g * Step * W + elements <= left; }
  __device__ bool has_half(int g) const { return g >= Words - Checked && g * Step * W + 1 == left; }

  // p: of the row, words begin to end. What lies behind the end is 0.
  template <class P>
  __device__ void fetch(Vector<P, W>* x, const P* p, int begin, int end) const {
    if (!whole(p)) return fetch_halves(x, p, begin, end);
    const P* from = p + at;
#pragma unroll
    for (int g = begin; g < end; ++g) {
      const P* word = from + g * Step * W;
      Vector<P, W> v = {};
      if (has(g, W)) v = *reinterpret_cast<const Vector<P, W>*>(word);
      if (W == 2 && has_half(g)) v = joined(*word, P{});
      x[g - begin] = v;
    }
  }

  // The same in two steps: the first asks for the words and, by itself, for the half that no whole word has; the second puts
  // it in its place, and waits. Of single halves the first waits as well.
  template <class P>
  __device__ void ask(Vector<P, W>* x, P& last, const P* p, int begin, int end) const {
    const P* from = p + at;
    last = {};
    if (W == 2 && left > 0 && left % (Step * W) == 1) last = from[left - 1];
    if (!whole(p)) return fetch_halves(x, p, begin, end);
#pragma unroll
    for (int g = begin; g < end; ++g) {
      const P* word = from + g * Step * W;
      x[g - begin] = {};
      if (has(g, W)) x[g - begin] = *reinterpret_cast<const Vector<P, W>*>(word);
    }
  }
  template <class P>
  __device__ void settle(Vector<P, W>* x, P last, int begin, int end) const {
#pragma unroll
    for (int g = begin; g < end; ++g)
      if (W == 2 && has_half(g)) x[g - begin] = joined(last, P{});
  }

  template <class T>
  __device__ void put(const Vector<T, W> (&x)[Words], T* p) const {
    T* to = p + at;
    if (whole(p)) {
#pragma unroll
      for (int g = 0; g < Words; ++g) {
        T* word = to + g * Step * W;
        if (has(g, W)) *reinterpret_cast<Vector<T, W>*>(word) = x[g];
        if (W == 2 && has_half(g)) *word = half_of(x[g], 0);
      }
    } else if constexpr (W == 2 && Step == kWarp) {
      // Words that begin with the second half of the word before, which the lane before has; lane 0's is lane 31's.
      const int lane = threadIdx.x % kWarp;
      if (lane == 0 && has(0, 1)) *to = half_of(x[0], 0);
      unsigned before = 0;
#pragma unroll
      for (int g = 0; g < Words; ++g) {
        T* word = to + g * Step * W;
        const unsigned around = __shfl_sync(0xffffffffu, x[g].pair[0], (lane + kWarp - 1) % kWarp);
        const unsigned both = __byte_perm(lane == 0 ? before : around, x[g].pair[0], 0x5432);
        before = around;
        if ((g > 0 || lane > 0) && has(g, 1)) *reinterpret_cast<unsigned*>(word - 1) = both;
        if (g >= Words - Checked && g * Step * W + 2 == left) word[1] = half_of(x[g], 1);
      }
    } else if constexpr (W == 2) {
#pragma unroll
      for (int g = 0; g < Words; ++g) {
        T* word = to + g * Step * W;
        if (has(g, 1)) word[0] = half_of(x[g], 0);
        if (has(g, 2)) word[1] = half_of(x[g], 1);
      }
    }
  }

 private:
  template <class P>
  static __device__ bool whole(const P* p) {
    return W == 1 || reinterpret_cast<uintptr_t>(p) % sizeof(Vector<P, W>) == 0;
  }
  template <class P>
  __device__ void fetch_halves(Vector<P, W>* x, const P* p, int begin, int end) const {
    if constexpr (W == 2) {
      const P* from = p + at;
#pragma unroll
      for (int g = begin; g < end; ++g) {
        const P* word = from + g * Step * W;
        P first = {}, second = {};
        if (has(g, 1)) first = word[0];
        if (has(g, 2)) second = word[1];
        x[g - begin] = joined(first, second);
      }
    }
  }
  template <class P>
  static __device__ Vector<P, W> joined(P first, P second) {
    Vector<P, W> v = {};
    if constexpr (W == 2 && sizeof(P) == 2) {
      v.pair[0] = first.bits | static_cast<unsigned>(second.bits) << 16;
    } else if constexpr (W == 2) {
      v.at[0] = first;
      v.at[1] = second;
    }
    return v;
  }
  template <class T>
  static __device__ T half_of(const Vector<T, W>& v, int k) {
    if constexpr (W == 2)
      return {static_cast<unsigned short>(v.pair[0] >> 16 * k)};
    else
      return v.at[0];
  }
};

// A row's words on their way. `shifted`: each begins an element earlier.
template <class T, int Words, int Checked, int Step>
struct WordsAhead {
  static constexpr int W = kWord<T>;
  using Mine = Part<Words, Checked, Step, W>;
  Vector<T, W> x[Words];
  unsigned head, last;  // the row's first element, the part's last one, where no word has them
  bool shifted;

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < Words; ++g) x[g] = {};
    head = last = 0;
    shifted = false;
  }

  __device__ void fetch(const Mine& part, const T* row) {
    clear();
    const T* from = row + part.at;
    if constexpr (W == 1) {
#pragma unroll
      for (int g = 0; g < Words; ++g)
        if (part.has(g, 1)) x[g].at[0] = from[g * Step];
    } else {
      shifted = reinterpret_cast<uintptr_t>(row) % 4 != 0;
      const bool first = shifted && part.at == 0;
      const unsigned* words = reinterpret_cast<const unsigned*>(from - shifted);
#pragma unroll
      for (int g = 0; g < Words; ++g)
        if (part.has(g, 2 - shifted) && !(g == 0 && first)) x[g].pair[0] = words[g * Step];
      if (first && part.left > 0) head = row->bits;
      if (part.left > 0 && part.left % (Step * W) == 1 + shifted) last = from[part.left - 1].bits;
    }
  }

  // Makes each word the part's own. All lanes of a warp take part.
  __device__ void settle(const Mine& part) {
    if constexpr (W == 2) {
      if (Step < kWarp || shifted) {
        const int lane = threadIdx.x % Step;
        x[0].pair[0] |= head << 16;
        auto after = [&](int g) { return __shfl_sync(0xffffffffu, x[g].pair[0], (lane + 1) % Step, Step); };
        unsigned around = after(0);
#pragma unroll
        for (int g = 0; g < Words; ++g) {
          const unsigned next = g + 1 < Words ? after(g + 1) : 0;
          const unsigned both = __byte_perm(x[g].pair[0], lane == Step - 1 ? next : around, 0x5432);
          if (shifted) x[g].pair[0] = both;
          around = next;
        }
      }
      const unsigned placed = last << (shifted ? 16 : 0);
#pragma unroll
      for (int g = Words - Checked; g < Words; ++g)
        if (g * Step * W + 1 + shifted == part.left) x[g].pair[0] |= placed;
    }
  }
};

}  // namespace fastops::FASTOPS_ARCH
