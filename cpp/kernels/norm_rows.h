#pragma once
// What the forward and the backward of the norms share. Several short rows go through each pass together, so that their
// sums are finished together; a long row goes in segments, which stay in L1 from pass to pass.
#include "cpu/engine/stream.h"
#include "cpu/engine/sums.h"
#include "kernels/norm.h"
#include "kernels/parameter.h"

namespace fastops::FASTOPS_ISA {

// v as it is when stored and read again.
template <class T>
FASTOPS_INLINE unit_t<T> rounded(unit_t<T> v) {
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  return load(lanes, whole{});
}

// Inputs of up to so many bytes are taken to be in the caches.
constexpr int64_t kCachedBytes = 8 << 20;

// Parameters of a half type are widened once for all rows up to so many elements; more would push the rows out of L1.
constexpr int64_t kHeldParameters = 1024;

}  // namespace fastops::FASTOPS_ISA
