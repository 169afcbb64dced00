// square(x) = x·x,   square_backward(grad, x) = 2·x·grad
#include "cpu/engine/pointwise.h"

namespace fastops::FASTOPS_ISA {

void square(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<1>(dtype, p, begin, end, [](auto x) { return x * x; });
}

void square_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<2>(dtype, p, begin, end, [](auto grad, auto x) { return (x + x) * grad; });
}

}  // namespace fastops::FASTOPS_ISA
