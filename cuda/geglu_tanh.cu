// geglu with approximate="tanh"
#include "gated.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct GeluTanh {
  template <class T, class A>
  static __device__ Activated<A> of(A x, A) {
    const device::normal<A> phi = device::logistic_normal_to<T>(x);
    return {x * phi.cdf, fma(x, phi.pdf, phi.cdf)};
  }
};

}  // namespace

int geglu_tanh(DType dtype, const Pointwise& p, void* stream) { return gated<GeluTanh>(dtype, p, stream); }
int geglu_tanh_backward(DType dtype, const Pointwise& p, void* stream) {
  return gated_backward<GeluTanh>(dtype, p, stream);
}

}  // namespace fastops::FASTOPS_ARCH
