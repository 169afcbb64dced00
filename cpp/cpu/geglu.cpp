// geglu: the gate times the normal distribution function of it, times up
#include "cpu/gated.h"

namespace fastops::FASTOPS_ISA {
namespace {

struct Gelu {
  template <class T, class V>
  static FASTOPS_INLINE V value(V x, V) {
    return gelu<T>(x);
  }
  template <class T, class V>
  static FASTOPS_INLINE Activated<V> of(V x, V) {
    const auto phi = normal_of<T>(x);
    return {x * phi.cdf, phi.cdf + x * phi.pdf};
  }
};

}  // namespace

void geglu(DType dtype, const Pointwise& p, int64_t begin, int64_t end) { gated<Gelu>(dtype, p, begin, end); }
void geglu_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  gated_backward<Gelu>(dtype, p, begin, end);
}

}  // namespace fastops::FASTOPS_ISA
