#pragma once
// The element types on the device. No includes: NVRTC compiles this file too, with or without CUDA's headers.

namespace fastops {
namespace device {

using int64 = long long;

struct f16 {
  unsigned short bits;
};
struct bf16 {
  unsigned short bits;
};

// What a kernel computes in: float for the half types.
template <class T>
struct accumulate {
  using type = float;
};
template <>
struct accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename accumulate<T>::type;

__device__ inline float widen(float x) { return x; }
__device__ inline double widen(double x) { return x; }
__device__ inline float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ inline float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

template <class T>
__device__ inline T narrow(accumulate_t<T> x) {
  return x;
}
template <>
__device__ inline f16 narrow<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  unsigned u = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : static_cast<unsigned short>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
  return y;
}

// Two halves in one word, the first in its low bits.
template <class T>
__device__ inline void widen_pair(unsigned pair, float& first, float& second);
template <>
__device__ inline void widen_pair<f16>(unsigned pair, float& first, float& second) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
      : "=f"(first), "=f"(second)
      : "r"(pair));
}
template <>
__device__ inline void widen_pair<bf16>(unsigned pair, float& first, float& second) {
  first = __uint_as_float(pair << 16);
  second = __uint_as_float(pair & 0xffff0000u);
}

template <class T>
__device__ inline unsigned narrow_pair(float first, float second) {
  return narrow<T>(first).bits | static_cast<unsigned>(narrow<T>(second).bits) << 16;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ inline unsigned narrow_pair<f16>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
template <>
__device__ inline unsigned narrow_pair<bf16>(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#endif

// The larger numbers of two pairs, element by element. The other number stands for a NaN.
template <class T>
__device__ inline unsigned max_pairs(unsigned a, unsigned b) {
  float x[2], y[2];
  widen_pair<T>(a, x[0], x[1]);
  widen_pair<T>(b, y[0], y[1]);
  return narrow_pair<T>(fmaxf(x[0], y[0]), fmaxf(x[1], y[1]));
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ inline unsigned max_pairs<f16>(unsigned a, unsigned b) {
  unsigned larger;
  asm("max.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
template <>
__device__ inline unsigned max_pairs<bf16>(unsigned a, unsigned b) {
  unsigned larger;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
#endif

// Sums of two pairs, rounded: the same as by way of f32, which has twice their digits and two more.
template <class T>
__device__ inline unsigned add_pairs(unsigned a, unsigned b) {
  float x[2], y[2];
  widen_pair<T>(a, x[0], x[1]);
  widen_pair<T>(b, y[0], y[1]);
  return narrow_pair<T>(x[0] + y[0], x[1] + y[1]);
}
template <>
__device__ inline unsigned add_pairs<f16>(unsigned a, unsigned b) {
  unsigned sum;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
  return sum;
}
#if __CUDA_ARCH__ >= 800
template <>
__device__ inline unsigned add_pairs<bf16>(unsigned a, unsigned b) {
  unsigned sum;
#if __CUDA_ARCH__ >= 900
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(sum) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(0x3f803f80), "r"(b));  // times 1
#endif
  return sum;
}
#endif

}  // namespace device
}  // namespace fastops
