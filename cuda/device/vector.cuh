#pragma once
// Groups of N neighbouring elements, moved as words of up to 16 bytes where alignment allows.
#include "types.cuh"

namespace fastops {
namespace device {

// Halves lie in pairs in 32-bit words, as registers hold them.
template <class T, int N, bool Pairs = sizeof(T) == 2 && N % 2 == 0>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector {
  T at[N];
};
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vector<T, N, true> {
  unsigned pair[N / 2];
};

// Elements that fill 16 bytes.
template <class T>
constexpr int kVector = 16 / sizeof(T);

template <class T, int N>
__device__ inline void widen(const Vector<T, N>& v, accumulate_t<T> (&x)[N]) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N / 2; ++k) widen_pair<T>(v.pair[k], x[2 * k], x[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = widen(v.at[k]);
  }
}

template <class T, int N>
__device__ inline Vector<T, N> narrow_all(const accumulate_t<T> (&x)[N]) {
  Vector<T, N> v;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N / 2; ++k) v.pair[k] = narrow_pair<T>(x[2 * k], x[2 * k + 1]);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) v.at[k] = narrow<T>(x[k]);
  }
  return v;
}

// 16 bytes with an eviction priority, of the L1 cache and, where there are policies, of L2 too.
#if __CUDA_ARCH__ >= 800
#define FASTOPS_PRIORITY(PRIORITY)                                                                           \
  "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::" PRIORITY ".b64 policy, 1.0;\nld.global.L1::" PRIORITY \
  ".L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], policy;\n}"
#else
#define FASTOPS_PRIORITY(PRIORITY) "ld.global.L1::" PRIORITY ".v4.b32 {%0, %1, %2, %3}, [%4];"
#endif
#define FASTOPS_LOAD(NAME, PRIORITY)                                                                    \
  template <class V>                                                                                    \
  __device__ inline V NAME(const V* p) {                                                                \
    static_assert(sizeof(V) == 16);                                                                     \
    V v;                                                                                                \
    auto* w = reinterpret_cast<unsigned*>(&v);                                                          \
    asm volatile(FASTOPS_PRIORITY(PRIORITY) : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(p)); \
    return v;                                                                                           \
  }

// What a block reads twice, or every block reads: the last lines to leave the L1 and L2 caches.
FASTOPS_LOAD(load_to_keep, "evict_last")

// The second time: the first to leave both.
FASTOPS_LOAD(load_to_drop, "evict_first")

#undef FASTOPS_LOAD
#undef FASTOPS_PRIORITY

// Makes the compiler take v as new, so that it widens it again rather than hold twice the registers from pass to pass.
template <class T, int N>
__device__ inline void hold_narrow(Vector<T, N>& v) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N / 2; ++k) asm volatile("" : "+r"(v.pair[k]));
  }
}

// The same where it is ptxas that would hold them, or widen them before a loop. What it does not know is 0.
__device__ inline unsigned unknown_zero() { return blockDim.z - 1; }
template <class T, int N>
__device__ inline void hold_narrow(Vector<T, N>& v, unsigned zero) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
#pragma unroll
    for (int k = 0; k < N / 2; ++k) v.pair[k] ^= zero;
  }
}

// Widened elements [0, N) of p, as one vector if Aligned, else those below `count`; the others are 0.
template <bool Aligned, int N, class T>
__device__ inline void load(const T* p, int64 count, accumulate_t<T> (&x)[N]) {
  if constexpr (Aligned) {
    const Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(p);  // by a reference each word is a load of its own
    widen(v, x);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = k < count ? accumulate_t<T>(widen(p[k])) : accumulate_t<T>(0);
  }
}

template <bool Aligned, int N, class T>
__device__ inline void store(T* p, int64 count, const accumulate_t<T> (&x)[N]) {
  if constexpr (Aligned) {
    *reinterpret_cast<Vector<T, N>*>(p) = narrow_all<T>(x);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (k < count) p[k] = narrow<T>(x[k]);
  }
}

// N elements as one vector, in one instruction: in the loops of column_walk.cuh the assignment above was one for each word.
template <int N, class T>
__device__ inline void store_at_once(T* p, const accumulate_t<T> (&x)[N]) {
  const Vector<T, N> v = narrow_all<T>(x);
  auto* w = reinterpret_cast<const unsigned*>(&v);
  if constexpr (sizeof(v) == 16)
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  else if constexpr (sizeof(v) == 8)
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(w[0]), "r"(w[1]) : "memory");
  else
    *reinterpret_cast<Vector<T, N>*>(p) = v;
}

}  // namespace device
}  // namespace fastops
