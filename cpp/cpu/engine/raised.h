#pragma once
// Exponentials of what is not above 0, raised so that no f32 result is denormal: those are slow.
#include "kernels/math.h"

namespace fastops::FASTOPS_ISA {

// e^x for x <= 0 times 2^64 in f32, a normal number even where e^x is none, for a result that is rounded to R; 0 where e^x
// is below half of the smallest number, so that what is masked has no gradient, whatever comes in.
template <class R>
FASTOPS_INLINE vf32 exp_raised(vf32 x) {
  constexpr float kLeast = -104;
  return select(x < kLeast, vf32{}, exp_up<sizeof(R) == 2>(at_least(x, kLeast)));
}
template <class R>
FASTOPS_INLINE vf64 exp_raised(vf64 x) {
  return exp(x);
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
