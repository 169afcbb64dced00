// reglu: the gate where it is above 0, times up
#include "gated.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Relu {
  template <class T, class A>
  static __device__ Activated<A> of(A x, A) {
    const bool zero = x <= 0;  // NaN stays
    return {zero ? A(0) : x, zero ? A(0) : A(1)};
  }
};

}  // namespace

int reglu(DType dtype, const Pointwise& p, void* stream) { return gated<Relu>(dtype, p, stream); }
int reglu_backward(DType dtype, const Pointwise& p, void* stream) { return gated_backward<Relu>(dtype, p, stream); }

}  // namespace fastops::FASTOPS_ARCH
