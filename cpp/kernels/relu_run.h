#pragma once
// relu over one contiguous run, with or without a bit an element for the backward. The half types are never widened:
// which of them are kept shows in their bits.
#include "kernels/direction.h"
#include "kernels/lane_bits.h"

namespace fastops::FASTOPS_ISA {

template <class T>
struct rectified {
  lanes_t<T> y, kept;  // max(x, 0) with NaN kept; all ones where that is not 0
};

template <class T>
FASTOPS_INLINE rectified<T> rectify(lanes_t<T> x) {
  using V = lanes_t<T>;
  if constexpr (sizeof(T) == 2) {
    constexpr uint16_t kInfinity = __is_same(T, f16) ? 0x7c00 : 0x7f80, kNans = 0x7fff - kInfinity;
    // 1, 2, ... 0x7fff and the NaNs below 0 are neighbours, shifted by the number of those NaNs.
    const V y = x & (V)(x + kNans <= static_cast<uint16_t>(0x7fff + kNans));
    return {y, (V)(y != 0)};
  } else {
    typedef T F __attribute__((vector_size(FASTOPS_VECTOR_BYTES)));
    const V kept = ~(V)((F)x <= 0);
    return {x & kept, kept};
  }
}

constexpr int kBlock = 64;  // elements, of whose bits a word is full

FASTOPS_INLINE uint64_t little_endian(uint64_t x) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  return __builtin_bswap64(x);
#else
  return x;
#endif
}

// `x` may be `y`.
template <class T, bool Mask>
FASTOPS_INLINE void relu_run(const T* x, T* y, uint8_t* mask, int64_t n) {
  constexpr int L = kLanes<T>;
  auto block = [](const T* from, T* to, uint8_t* bytes, int64_t direction) __attribute__((always_inline)) {
    uint64_t bits = 0;
#pragma GCC unroll 16
    for (int step = 0; step < kBlock; step += L) {
      const int k = direction < 0 ? kBlock - L - step : step;
      const auto r = rectify<T>(load_bytes<lanes_t<T>>(from + k));
      store_bytes(to + k, r.y);
      if constexpr (Mask) bits |= uint64_t{bits_of<T>(r.kept)} << k;
    }
    if constexpr (Mask) store_bytes(bytes, little_endian(bits));
  };
  const int64_t i =
      for_steps<kBlock>(n, is_close_behind(y, x), [&](int64_t at, int64_t direction) __attribute__((always_inline)) {
        block(x + at, y + at, mask + at / 8, direction);
      });
  if (i == n) return;
  T rest[kBlock] = {};
  uint8_t bytes[kBlock / 8];
  for (int64_t k = 0; k < n - i; ++k) rest[k] = x[i + k];
  block(rest, rest, bytes, 1);
  for (int64_t k = 0; k < n - i; ++k) y[i + k] = rest[k];
  if constexpr (Mask)
    for (int64_t k = 0; k < (n - i + 7) / 8; ++k) mask[i / 8 + k] = bytes[k];
}

// `grad` may be `grad_input`.
template <class T>
FASTOPS_INLINE void relu_backward_run(const T* grad, const uint8_t* mask, T* grad_input, int64_t n) {
  constexpr int L = kLanes<T>;
  auto block = [](const T* from, const uint8_t* bytes, T* to, int64_t direction) __attribute__((always_inline)) {
    const uint64_t bits = little_endian(load_bytes<uint64_t>(bytes));
#pragma GCC unroll 16
    for (int step = 0; step < kBlock; step += L) {
      const int k = direction < 0 ? kBlock - L - step : step;
      store_bytes(to + k, where_bits<T>(static_cast<uint32_t>(bits >> k), load_bytes<lanes_t<T>>(from + k)));
    }
  };
  const int64_t i = for_steps<kBlock>(n, is_close_behind(grad_input, grad),
                                      [&](int64_t at, int64_t direction) __attribute__((always_inline)) {
                                        block(grad + at, mask + at / 8, grad_input + at, direction);
                                      });
  if (i == n) return;
  T rest[kBlock] = {};
  uint8_t bytes[kBlock / 8] = {};
  for (int64_t k = 0; k < n - i; ++k) rest[k] = grad[i + k];
  for (int64_t k = 0; k < (n - i + 7) / 8; ++k) bytes[k] = mask[i / 8 + k];
  block(rest, bytes, rest, 1);
  for (int64_t k = 0; k < n - i; ++k) grad_input[i + k] = rest[k];
}

}  // namespace fastops::FASTOPS_ISA
