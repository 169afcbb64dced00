// sigmoid(x) = 1 / (1 + e^-x);   sigmoid_backward(grad, y) = y·(1 - y)·grad
#include "pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Sigmoid {
  template <class A>
  __device__ A operator()(A x) const {
    return device::sigmoid(x);
  }
};

struct SigmoidBackward {
  template <class A>
  __device__ A operator()(A grad, A y) const {
    return y * (1 - y) * grad;
  }
};

}  // namespace

int sigmoid(DType dtype, const Pointwise& p, void* stream) { return pointwise<1>(dtype, p, stream, Sigmoid{}); }

int sigmoid_backward(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<2>(dtype, p, stream, SigmoidBackward{});
}

}  // namespace fastops::FASTOPS_ARCH
