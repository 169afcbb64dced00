// cube(x) = x³,   cube_backward(grad, x) = 3·x²·grad
#include "cpu/engine/pointwise.h"

namespace fastops::FASTOPS_ISA {

void cube(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<1>(dtype, p, begin, end, [](auto x) { return x * x * x; });
}

void cube_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<2>(dtype, p, begin, end, [](auto grad, auto x) { return 3 * x * x * grad; });
}

}  // namespace fastops::FASTOPS_ISA
