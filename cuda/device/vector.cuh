#pragma once
// Groups of N neighbouring elements, moved as 16-byte words where alignment allows.
#include "types.cuh"

namespace fastops {
namespace device {

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T at[N];
};

// Elements that fill 16 bytes.
template <class T>
constexpr int kVector = 16 / sizeof(T);

// Widened elements [0, N) of p, as one vector if Aligned, else those below `count`; the others are 0.
template <bool Aligned, int N, class T>
__device__ inline void load(const T* p, int64 count, accumulate_t<T> (&x)[N]) {
  if constexpr (Aligned) {
    Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(p);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = widen(v.at[k]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = k < count ? accumulate_t<T>(widen(p[k])) : accumulate_t<T>(0);
  }
}

template <bool Aligned, int N, class T>
__device__ inline void store(T* p, int64 count, const accumulate_t<T> (&x)[N]) {
  if constexpr (Aligned) {
    Vector<T, N> v;
#pragma unroll
    for (int k = 0; k < N; ++k) v.at[k] = narrow<T>(x[k]);
    *reinterpret_cast<Vector<T, N>*>(p) = v;
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < count) p[k] = narrow<T>(x[k]);
  }
}

}  // namespace device
}  // namespace fastops
