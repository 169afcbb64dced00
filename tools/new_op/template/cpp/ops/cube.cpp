// cube(x) = x³
#include "host/pointwise.h"

namespace fastops {

FASTOPS_POINTWISE(cube);
FASTOPS_POINTWISE(cube_backward);

namespace ops {

Tensor cube(const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::cube_reference", input);
  return unary("cube", cube_kernels, input);
}

Tensor cube_backward(const Tensor& grad, const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::cube_backward_reference", grad, input);
  return unary_backward("cube_backward", cube_backward_kernels, grad, "input", input);
}

FASTOPS_OP("cube", "(Tensor input) -> Tensor", cube);
FASTOPS_OP("cube_backward", "(Tensor grad, Tensor input) -> Tensor", cube_backward);

}  // namespace ops
}  // namespace fastops
