// glu: the gate's sigmoid, times up
#include "cpu/gated.h"

namespace fastops::FASTOPS_ISA {
namespace {

struct Sigmoid {
  template <class T, class V>
  static FASTOPS_INLINE V value(V x, V) {
    return sigmoid<T>(x);
  }
  template <class T, class V>
  static FASTOPS_INLINE Activated<V> of(V x, V) {
    const auto s = sigmoids_of<T>(x);
    return {s.up, s.up * s.down};
  }
};

}  // namespace

void glu(DType dtype, const Pointwise& p, int64_t begin, int64_t end) { gated<Sigmoid>(dtype, p, begin, end); }
void glu_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  gated_backward<Sigmoid>(dtype, p, begin, end);
}

}  // namespace fastops::FASTOPS_ISA
