// sigmoid(x) = 1 / (1 + e^-x);   sigmoid_backward(grad, y) = y·(1 - y)·grad
#include "cpu/engine/pointwise.h"
#include "kernels/math.h"

namespace fastops::FASTOPS_ISA {

void sigmoid(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  dispatch(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    pointwise_of<T, 1>(p, begin, end, [](auto x) { return sigmoid<T>(x); });
  });
}

void sigmoid_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<2>(dtype, p, begin, end, [](auto grad, auto y) { return y * (1 - y) * grad; });
}

}  // namespace fastops::FASTOPS_ISA
