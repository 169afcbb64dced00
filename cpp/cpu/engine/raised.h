#pragma once
// Exponentials of what is not above 0, raised so that no f32 result is denormal: those are slow.
#include "kernels/math.h"

namespace fastops::FASTOPS_ISA {

constexpr float kLeastRaised = -104;  // of which the power is below half of f32's smallest number

// e^x for x <= 0 times 2^64 in f32, a normal number even where e^x is none, for a result that is rounded to R.
template <class R>
FASTOPS_INLINE vf32 exp_raised(vf32 x) {
  return exp_up<sizeof(R) == 2>(at_least(x, kLeastRaised));
}
template <class R>
FASTOPS_INLINE vf64 exp_raised(vf64 x) {
  return exp(x);
}

// The same in a gradient, where what is masked must have none: in f32 0 where a power is none. float16 rounds it to 0, bfloat16
// where what comes in is below 6e4, and there the comparison is not worth its time.
template <class R>
FASTOPS_INLINE vf32 exp_raised_or_0(vf32 x) {
  return sizeof(R) == 2 ? exp_raised<R>(x) : select(x < kLeastRaised, vf32{}, exp_raised<R>(x));
}
template <class R>
FASTOPS_INLINE vf64 exp_raised_or_0(vf64 x) {
  return exp_raised<R>(x);
}

template <class A>
constexpr A kLower = sizeof(A) == 4 ? A(kDown) : A(1);

// What is multiplied by a raised power is lowered before, if it is large, so that the product does not overflow, and else
// behind, so that it keeps its digits.
template <class A>
constexpr A lower_before(A largest) {
  return largest >= 1 ? kLower<A> : A(1);
}
template <class A>
constexpr A lower_behind(A largest) {
  return largest >= 1 ? A(1) : kLower<A>;
}

}  // namespace fastops::FASTOPS_ISA
