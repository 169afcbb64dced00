// geglu with approximate="tanh"
#include "cpu/gated.h"

namespace fastops::FASTOPS_ISA {
namespace {

struct GeluTanh {
  template <class T, class V>
  static FASTOPS_INLINE V value(V x, V) {
    return x * logistic_normal_of<T>(x).cdf;
  }
  template <class T, class V>
  static FASTOPS_INLINE Activated<V> of(V x, V) {
    const auto phi = logistic_normal_of<T>(x);
    return {x * phi.cdf, phi.cdf + x * phi.pdf};
  }
};

}  // namespace

void geglu_tanh(DType dtype, const Pointwise& p, int64_t begin, int64_t end) { gated<GeluTanh>(dtype, p, begin, end); }
void geglu_tanh_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  gated_backward<GeluTanh>(dtype, p, begin, end);
}

}  // namespace fastops::FASTOPS_ISA
