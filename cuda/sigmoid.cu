// sigmoid(x) = 1 / (1 + e^-x);   sigmoid_backward(grad, y) = y·(1 - y)·grad
#include "engine/pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <class T>
struct Sigmoid {
  using A = accumulate_t<T>;
  __device__ A operator()(A x) const { return device::sigmoid_to<T>(x); }
};

struct SigmoidBackward {
  template <class A>
  __device__ A operator()(A grad, A y) const {
    return y * (1 - y) * grad;
  }
};

}  // namespace

int sigmoid(DType dtype, const Pointwise& p, void* stream) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return pointwise_of<T, 1>(p, stream, Sigmoid<T>{});
  });
}

int sigmoid_backward(DType dtype, const Pointwise& p, void* stream) {
  return pointwise<2>(dtype, p, stream, SigmoidBackward{});
}

}  // namespace fastops::FASTOPS_ARCH
