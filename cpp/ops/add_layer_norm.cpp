// add_layer_norm: layer_norm of input + residual, and that sum
#include "core/norm_edge.h"

namespace fastops::ops {

using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

Four add_layer_norm(const Tensor& input, const Tensor& residual, const std::vector<int64_t>& normalized_shape,
                    OptionalTensor weight, OptionalTensor bias, double eps) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input))
    return call<Four>("fastops::add_layer_norm_reference", input, residual, shape, weight, bias, eps);
  NormOutputs r = norm_forward({.op = "add_layer_norm",
                                .norm = Norm::layer,
                                .input = input,
                                .residual = &residual,
                                .shape = shape,
                                .weight = weight,
                                .bias = bias,
                                .eps = eps,
                                .weight_offset = 0});
  return {r.output, *r.sum, *r.centre, r.rstd};
}

// The first gradient is that of input and of residual. Outputs that are not asked for are empty tensors.
Triple add_layer_norm_backward(const Tensor& grad, OptionalTensor grad_sum, const Tensor& sum,
                               const std::vector<int64_t>& normalized_shape, const Tensor& centre, const Tensor& rstd,
                               OptionalTensor weight, OptionalTensor bias, double eps, bool need_input,
                               bool need_weight, bool need_bias) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(sum))
    return call<Triple>("fastops::add_layer_norm_backward_reference", grad, grad_sum, sum, shape, centre, rstd, weight,
                        bias, eps, need_input, need_weight, need_bias);
  NormGradients r = norm_backward({.op = "add_layer_norm_backward",
                                   .forward_op = "add_layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = tensor_or_null(grad_sum),
                                   .input_name = "sum",
                                   .input = sum,
                                   .shape = shape,
                                   .centre = &centre,
                                   .rstd = rstd,
                                   .weight = weight,
                                   .bias = bias,
                                   .weight_offset = 0,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = need_bias});
  return {r.input, r.weight, *r.bias};
}

FASTOPS_OP("add_layer_norm",
           "(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, "
           "float eps=1e-05) -> (Tensor, Tensor, Tensor, Tensor)",
           add_layer_norm);
FASTOPS_OP("add_layer_norm_backward",
           "(Tensor grad, Tensor? grad_sum, Tensor sum, SymInt[] normalized_shape, Tensor centre, Tensor rstd, "
           "Tensor? weight, Tensor? bias, float eps, bool need_input, bool need_weight, bool need_bias)"
           " -> (Tensor, Tensor, Tensor)",
           add_layer_norm_backward);

}  // namespace fastops::ops
