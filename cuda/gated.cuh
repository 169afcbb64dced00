#pragma once
// Gated linear units: y = s·act(g)·(u + offset) with the gate g clamped from above and u from both sides, s the row's scale.
#include "engine/pointwise.cuh"

namespace fastops::FASTOPS_ARCH {

template <class A>
struct Activated {
  A value, slope;
};

// Act::of<T>(gate, alpha) is the activation and its derivative, for results that are rounded to T.
template <class T, class Act>
struct Gated {
  using A = accumulate_t<T>;
  static constexpr bool kRowScale = true;
  A limit, alpha, offset;

  explicit Gated(const Pointwise& p) : limit(A(p.scalars[0])), alpha(A(p.scalars[1])), offset(A(p.scalars[2])) {}

  // NaN stays.
  __device__ A below(A x) const { return x > limit ? limit : x; }
  __device__ A within(A x) const { return x < -limit ? -limit : below(x); }

  __device__ A operator()(A gate, A up, A scale) const {
    return scale * (Act::template of<T>(below(gate), alpha).value * (within(up) + offset));
  }
};

// The gradients of gate and up, and what adds up to the scale's.
template <class T, class Act>
struct GatedBackward : Gated<T, Act> {
  using Base = Gated<T, Act>;
  using A = typename Base::A;
  static constexpr bool kRowScale = true, kRowSum = true;
  using Base::Base;

  __device__ many<A, 3> operator()(A grad, A gate, A up, A scale) const {
    const Activated<A> act = Act::template of<T>(this->below(gate), this->alpha);
    const A shifted = this->within(up) + this->offset, scaled = scale * grad;
    const bool gate_moves = !(gate > this->limit), up_moves = !(up > this->limit || up < -this->limit);
    return {{gate_moves ? scaled * shifted * act.slope : A(0), up_moves ? scaled * act.value : A(0),
             grad * (act.value * shifted)}};
  }
};

template <class Act>
int gated(DType dtype, const Pointwise& p, void* stream) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return pointwise_of<T, 2>(p, stream, Gated<T, Act>(p));
  });
}

template <class Act>
int gated_backward(DType dtype, const Pointwise& p, void* stream) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return pointwise_of<T, 3, 2>(p, stream, GatedBackward<T, Act>(p));
  });
}

}  // namespace fastops::FASTOPS_ARCH
