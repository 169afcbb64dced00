// relu: max(x, 0)
#include "host/pointwise.h"

namespace fastops {

FASTOPS_POINTWISE(relu);
FASTOPS_POINTWISE(relu_backward);

namespace ops {

Tensor relu(const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::relu_reference", input);
  return unary("relu", relu_kernels, input);
}

Tensor relu_backward(const Tensor& grad, const Tensor& output) {
  if (!kernels_take(output)) return call<Tensor>("fastops::relu_backward_reference", grad, output);
  return unary_backward("relu_backward", relu_backward_kernels, grad, "output", output);
}

FASTOPS_OP("relu", "(Tensor input) -> Tensor", relu);
FASTOPS_OP("relu_backward", "(Tensor grad, Tensor output) -> Tensor", relu_backward);

}  // namespace ops
}  // namespace fastops
