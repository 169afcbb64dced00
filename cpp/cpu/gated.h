#pragma once
// Gated linear units: y = s·act(g)·(u + offset) with the gate g clamped from above and u from both sides, s the row's scale.
#include "cpu/engine/pointwise.h"
#include "kernels/math.h"

namespace fastops::FASTOPS_ISA {

template <class V>
struct Activated {
  V value, slope;
};

// Act::value<T>(gate, alpha) is the activation, Act::of<T>(gate, alpha) its derivative too, for results that are rounded to T.
template <class T, class Act>
struct Gated {
  using V = vec_t<T>;
  V limit, alpha, offset, row = like(V{}, 1);

  explicit Gated(const Pointwise& p)
      : limit(like(V{}, p.scalars[0])), alpha(like(V{}, p.scalars[1])), offset(like(V{}, p.scalars[2])) {}

  // NaN stays.
  FASTOPS_INLINE V below(V x) const { return select(x > limit, limit, x); }
  FASTOPS_INLINE V within(V x) const { return select(x < -limit, -limit, below(x)); }

  FASTOPS_INLINE V operator()(V gate, V up) const {
    return row * (Act::template value<T>(below(gate), alpha) * (within(up) + offset));
  }
};

// The gradients of gate and up; with Sums what adds up to the row's scale's too.
template <class T, class Act, bool Sums>
struct GatedBackward : Gated<T, Act> {
  using Base = Gated<T, Act>;
  using V = typename Base::V;
  using Base::Base;

  FASTOPS_INLINE auto operator()(V grad, V gate, V up) const {
    const V none{}, limit = this->limit;
    const Activated<V> act = Act::template of<T>(this->below(gate), this->alpha);
    const V shifted = this->within(up) + this->offset, scaled = this->row * grad;
    const V of_gate = select(gate > limit, none, scaled * shifted * act.slope);
    const V of_up = select(up > limit, none, select(up < -limit, none, scaled * act.value));
    if constexpr (Sums)
      return many<V, 3>{{of_gate, of_up, grad * (act.value * shifted)}};
    else
      return many<V, 2>{{of_gate, of_up}};
  }
};

template <class Act>
void gated(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  dispatch(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    const Gated<T, Act> f(p);
    p.row_scale ? pointwise_rows<T, 2, 1>(p, begin, end, f) : pointwise_of<T, 2>(p, begin, end, f);
  });
}

template <class Act>
void gated_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  dispatch(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if (p.row_sums) return pointwise_row_sums<T, 3, 2>(p, begin, end, GatedBackward<T, Act, true>(p));
    const GatedBackward<T, Act, false> f(p);
    p.row_scale ? pointwise_rows<T, 3, 2>(p, begin, end, f) : pointwise_of<T, 3, 2>(p, begin, end, f);
  });
}

}  // namespace fastops::FASTOPS_ISA
