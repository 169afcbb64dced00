// reglu: the gate where it is above 0, times up
#include "cpu/gated.h"

namespace fastops::FASTOPS_ISA {
namespace {

struct Relu {
  template <class T, class V>
  static FASTOPS_INLINE V value(V x, V) {
    return select(x <= 0, V{}, x);
  }  // NaN stays
  template <class T, class V>
  static FASTOPS_INLINE Activated<V> of(V x, V alpha) {
    return {value<T>(x, alpha), select(x <= 0, V{}, like(x, 1))};
  }
};

}  // namespace

void reglu(DType dtype, const Pointwise& p, int64_t begin, int64_t end) { gated<Relu>(dtype, p, begin, end); }
void reglu_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  gated_backward<Relu>(dtype, p, begin, end);
}

}  // namespace fastops::FASTOPS_ISA
