// axpby(x, y) = alpha·x + beta·y;   axpby_backward(grad) = (alpha·grad, beta·grad)
#include "engine/pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Axpby {
  double alpha, beta;
  template <class A>
  __device__ A operator()(A x, A y) const {
    return device::product(A(alpha), x) + device::product(A(beta), y);  // fused, x - x would not be 0
  }
};

struct AxpbyBackward {
  double alpha, beta;
  template <class A>
  __device__ many<A, 2> operator()(A grad) const {
    return {{A(alpha) * grad, A(beta) * grad}};
  }
};

}  // namespace

int axpby(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<2>(dtype, p, stream, Axpby{p.scalars[0], p.scalars[1]});
}

int axpby_backward(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<1, 2>(dtype, p, stream, AxpbyBackward{p.scalars[0], p.scalars[1]});
}

}  // namespace fastops::FASTOPS_ARCH
