// add_rms_norm: rms_norm of input + residual, and that sum
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple add_rms_norm(const Tensor& input, const Tensor& residual, const std::vector<int64_t>& normalized_shape,
                    OptionalTensor weight, std::optional<double> eps, double weight_offset) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input))
    return call<Triple>("fastops::add_rms_norm_reference", input, residual, shape, weight, eps, weight_offset);
  NormOutputs r = norm_forward({.op = "add_rms_norm",
                                .norm = Norm::rms,
                                .input = input,
                                .residual = &residual,
                                .shape = shape,
                                .weight = weight,
                                .bias = {},
                                .eps = rms_eps(eps, input),
                                .weight_offset = weight_offset});
  return {r.output, *r.sum, r.rstd};
}

// The first gradient is that of input and of residual. Outputs that are not asked for are empty tensors.
Pair add_rms_norm_backward(const Tensor& grad, OptionalTensor grad_sum, const Tensor& sum,
                           const std::vector<int64_t>& normalized_shape, const Tensor& rstd, OptionalTensor weight,
                           std::optional<double> eps, double weight_offset, bool need_input, bool need_weight) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(sum))
    return call<Pair>("fastops::add_rms_norm_backward_reference", grad, grad_sum, sum, shape, rstd, weight, eps,
                      weight_offset, need_input, need_weight);
  NormGradients r = norm_backward({.op = "add_rms_norm_backward",
                                   .forward_op = "add_rms_norm",
                                   .norm = Norm::rms,
                                   .grad = grad,
                                   .grad_sum = tensor_or_null(grad_sum),
                                   .input_name = "sum",
                                   .input = sum,
                                   .shape = shape,
                                   .centre = nullptr,
                                   .rstd = rstd,
                                   .weight = weight,
                                   .bias = {},
                                   .weight_offset = weight_offset,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = false});
  return {r.input, r.weight};
}

FASTOPS_OP("add_rms_norm",
           "(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, "
           "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)",
           add_rms_norm);
FASTOPS_OP("add_rms_norm_backward",
           "(Tensor grad, Tensor? grad_sum, Tensor sum, SymInt[] normalized_shape, Tensor rstd, Tensor? weight, "
           "float? eps, float weight_offset, bool need_input, bool need_weight) -> (Tensor, Tensor)",
           add_rms_norm_backward);

}  // namespace fastops::ops
