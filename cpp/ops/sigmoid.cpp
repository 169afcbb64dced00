// sigmoid: 1 / (1 + e^-x)
#include "host/pointwise.h"

namespace fastops {

FASTOPS_POINTWISE(sigmoid);
FASTOPS_POINTWISE(sigmoid_backward);

namespace ops {

Tensor sigmoid(const Tensor& input) {
  if (!kernels_take(input)) return call<Tensor>("fastops::sigmoid_reference", input);
  return unary("sigmoid", sigmoid_kernels, input);
}

Tensor sigmoid_backward(const Tensor& grad, const Tensor& output) {
  if (!kernels_take(output)) return call<Tensor>("fastops::sigmoid_backward_reference", grad, output);
  return unary_backward("sigmoid_backward", sigmoid_backward_kernels, grad, "output", output);
}

FASTOPS_OP("sigmoid", "(Tensor input) -> Tensor", sigmoid);
FASTOPS_OP("sigmoid_backward", "(Tensor grad, Tensor output) -> Tensor", sigmoid_backward);

}  // namespace ops
}  // namespace fastops
