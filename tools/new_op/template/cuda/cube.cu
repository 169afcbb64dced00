// cube(x) = x³,   cube_backward(grad, x) = 3·x²·grad
#include "engine/pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

struct Cube {
  template <class A>
  __device__ A operator()(A x) const {
    return x * x * x;
  }
};

struct CubeBackward {
  template <class A>
  __device__ A operator()(A grad, A x) const {
    return 3 * x * x * grad;
  }
};

}  // namespace

int cube(DType dtype, const Pointwise& p, void* stream) { return pointwise<1>(dtype, p, stream, Cube{}); }

int cube_backward(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<2>(dtype, p, stream, CubeBackward{});
}

}  // namespace fastops::FASTOPS_ARCH
