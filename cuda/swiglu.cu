// swiglu: the gate times its sigmoid, times up
#include "gated.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Silu {
  template <class T, class A>
  static __device__ Activated<A> of(A x, A alpha) {
    const A s = device::sigmoid_to<T>(alpha * x);
    return {x * s, s * fma(alpha * x, 1 - s, A(1))};
  }
};

}  // namespace

int swiglu(DType dtype, const Pointwise& p, void* stream) { return gated<Silu>(dtype, p, stream); }
int swiglu_backward(DType dtype, const Pointwise& p, void* stream) { return gated_backward<Silu>(dtype, p, stream); }

}  // namespace fastops::FASTOPS_ARCH
