// relu(x) = max(x, 0), NaN kept;   relu_backward(grad, y) = 0 where y <= 0, else grad
#include "engine/pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Relu {
  template <class A>
  __device__ A operator()(A x) const {
    return x <= 0 ? A(0) : x;
  }
};

struct ReluBackward {
  template <class A>
  __device__ A operator()(A grad, A y) const {
    return y <= 0 ? A(0) : grad;
  }
};

}  // namespace

int relu(DType dtype, const Pointwise& p, void* stream) { return pointwise<1>(dtype, p, stream, Relu{}); }

int relu_backward(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<2>(dtype, p, stream, ReluBackward{});
}

}  // namespace fastops::FASTOPS_ARCH
