// square(x) = x·x
#include "host/pointwise.h"

namespace fastops {

FASTOPS_POINTWISE(square);
FASTOPS_POINTWISE(square_backward);

namespace ops {

Tensor square(const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::square_reference", input);
  return unary("square", square_kernels, input);
}

Tensor square_backward(const Tensor& grad, const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::square_backward_reference", grad, input);
  return unary_backward("square_backward", square_backward_kernels, grad, "input", input);
}

FASTOPS_OP("square", "(Tensor input) -> Tensor", square);
FASTOPS_OP("square_backward", "(Tensor grad, Tensor input) -> Tensor", square_backward);

}  // namespace ops
}  // namespace fastops
