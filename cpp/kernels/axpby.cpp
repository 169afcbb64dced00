// axpby(x, y) = alpha·x + beta·y;   axpby_backward(grad) = (alpha·grad, beta·grad)
#include "cpu/engine/pointwise.h"

namespace fastops::FASTOPS_ISA {

void axpby(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<2>(dtype, p, begin, end, [alpha = p.scalars[0], beta = p.scalars[1]](auto x, auto y) {
    return product(like(x, alpha), x) + product(like(y, beta), y);  // fused, x - x would not be 0
  });
}

void axpby_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<1, 2>(dtype, p, begin, end, [alpha = p.scalars[0], beta = p.scalars[1]](auto grad) {
    return many<decltype(grad), 2>{{like(grad, alpha) * grad, like(grad, beta) * grad}};
  });
}

}  // namespace fastops::FASTOPS_ISA
