// geglu: the gate times the normal distribution function of it, times up
#include "gated.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Gelu {
  template <class T, class A>
  static __device__ Activated<A> of(A x, A) {
    const device::normal<A> phi = device::normal_to<T>(x);
    return {x * phi.cdf, fma(x, phi.pdf, phi.cdf)};
  }
};

}  // namespace

int geglu(DType dtype, const Pointwise& p, void* stream) { return gated<Gelu>(dtype, p, stream); }
int geglu_backward(DType dtype, const Pointwise& p, void* stream) { return gated_backward<Gelu>(dtype, p, stream); }

}  // namespace fastops::FASTOPS_ARCH
