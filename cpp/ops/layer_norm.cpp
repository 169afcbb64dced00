// layer_norm: (x - mean)·rstd·weight + bias over the trailing dimensions
#include "core/norm_edge.h"

namespace fastops::ops {

using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple layer_norm(const Tensor& input, const std::vector<int64_t>& normalized_shape, OptionalTensor weight,
                  OptionalTensor bias, double eps) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input)) return call<Triple>("fastops::layer_norm_reference", input, shape, weight, bias, eps);
  NormOutputs r = norm_forward({.op = "layer_norm",
                                .norm = Norm::layer,
                                .input = input,
                                .residual = nullptr,
                                .shape = shape,
                                .weight = weight,
                                .bias = bias,
                                .eps = eps,
                                .weight_offset = 0});
  return {r.output, *r.centre, r.rstd};
}

// Outputs that are not asked for are empty tensors.
Triple layer_norm_backward(const Tensor& grad, const Tensor& input, const std::vector<int64_t>& normalized_shape,
                           const Tensor& centre, const Tensor& rstd, OptionalTensor weight, OptionalTensor bias,
                           double eps, bool need_input, bool need_weight, bool need_bias) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input))
    return call<Triple>("fastops::layer_norm_backward_reference", grad, input, shape, centre, rstd, weight, bias, eps,
                        need_input, need_weight, need_bias);
  NormGradients r = norm_backward({.op = "layer_norm_backward",
                                   .forward_op = "layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
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

FASTOPS_OP("layer_norm",
           "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05)"
           " -> (Tensor, Tensor, Tensor)",
           layer_norm);
FASTOPS_OP("layer_norm_backward",
           "(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor centre, Tensor rstd, Tensor? weight, "
           "Tensor? bias, float eps, bool need_input, bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
           layer_norm_backward);

}  // namespace fastops::ops
