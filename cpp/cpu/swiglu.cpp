// swiglu: the gate times its sigmoid, times up
#include "cpu/gated.h"

namespace fastops::FASTOPS_ISA {
namespace {

struct Silu {
  template <class T, class V>
  static FASTOPS_INLINE V value(V x, V alpha) {
    return x * sigmoid<T>(alpha * x);
  }
  template <class T, class V>
  static FASTOPS_INLINE Activated<V> of(V x, V alpha) {
    const auto s = sigmoids_of<T>(alpha * x);
    return {x * s.up, s.up * (1 + alpha * x * s.down)};
  }
};

}  // namespace

void swiglu(DType dtype, const Pointwise& p, int64_t begin, int64_t end) { gated<Silu>(dtype, p, begin, end); }
void swiglu_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  gated_backward<Silu>(dtype, p, begin, end);
}

}  // namespace fastops::FASTOPS_ISA
