#pragma once
// Operands with one element for each column of a row, such as a weight and a bias.
#include "engine/row/access.cuh"

namespace fastops::FASTOPS_ARCH {

// A column operand of dtype P, at a multiple of 16 bytes. If it is not given, every element is `absent`.
template <class P>
struct Column {
  using A = accumulate_t<P>;
  const P* data;
  A absent;

  // The operand from element `first` on.
  __device__ Column from(int64_t first) const { return {data ? data + first : nullptr, absent}; }

  // Reads elements [first, first + W) of n; those behind the last one are `absent`. kWhole: n is a multiple of W.
  // is_within: none is behind it.
  template <bool kWhole, int W>
  __device__ void load(int first, int n, bool is_within, A (&x)[W]) const {
    Vector<P, W> v = filled<P, W>(absent);  // a vector, because a reference takes one load for each word
    const auto* from = reinterpret_cast<const Vector<P, W>*>(data + first);
    if (data && (kWhole ? first < n : is_within)) v = *from;
    device::widen(v, x);
    if constexpr (!kWhole) {
      if (!data || is_within) return;
#pragma unroll
      for (int k = 0; k < W; ++k)
        if (first + k < n) x[k] = device::widen(data[first + k]);
    }
  }

  // Reads a lane's vectors.
  template <bool kWhole, int W, int kVectors, int kLanes>
  __device__ void load_all(Vector<P, W> (&v)[kVectors], int n, const LaneVectors<kLanes>& own) const {
    if (data) {
      load_vectors<kWhole, W, true>(v, data, n, own, A(0));
    } else {
#pragma unroll
      for (int g = 0; g < kVectors; ++g) v[g] = filled<P, W>(absent);
    }
  }
};

}  // namespace fastops::FASTOPS_ARCH
