// relu that keeps a bit an element for its backward:  grad_input = grad where the bit is set, else 0
#include "kernels/relu.h"
#include "kernels/relu_run.h"

namespace fastops::FASTOPS_ISA {

static FASTOPS_INLINE int64_t elements(int64_t bytes, int64_t numel) { return 8 * bytes < numel ? 8 * bytes : numel; }

void relu_mask(const ReluMask& a, int64_t begin, int64_t end) {
  const int64_t first = 8 * begin, n = elements(end, a.numel) - first;
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    relu_run<T, true>(static_cast<const T*>(a.input) + first, static_cast<T*>(a.output) + first, a.mask + begin, n);
  });
}

void relu_mask_backward(const ReluMaskBackward& a, int64_t begin, int64_t end) {
  const int64_t first = 8 * begin, n = elements(end, a.numel) - first;
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    relu_backward_run(static_cast<const T*>(a.grad) + first, a.mask + begin, static_cast<T*>(a.grad_input) + first, n);
  });
}

}  // namespace fastops::FASTOPS_ISA
