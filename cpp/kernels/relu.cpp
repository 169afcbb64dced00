// relu(x) = max(x, 0), NaN kept;   relu_backward(grad, y) = 0 where y <= 0, else grad
#include "cpu/engine/pointwise.h"
#include "kernels/math.h"
#include "kernels/relu_run.h"

namespace fastops::FASTOPS_ISA {

void relu(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  if (p.is_contiguous()) {
    dispatch(dtype, [&](auto t) {
      using T = typename decltype(t)::type;
      relu_run<T, false>(static_cast<const T*>(p.data[1]) + begin, static_cast<T*>(p.data[0]) + begin, nullptr,
                         end - begin);
    });
    return;
  }
  pointwise<1>(dtype, p, begin, end, [](auto x) { return select(x <= 0, like(x, 0), x); });
}

void relu_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  pointwise<2>(dtype, p, begin, end, [](auto grad, auto y) { return select(y <= 0, like(y, 0), grad); });
}

}  // namespace fastops::FASTOPS_ISA
