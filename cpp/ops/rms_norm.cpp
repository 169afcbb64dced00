// rms_norm: x·rstd·(weight + weight_offset) over the trailing dimensions
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;

Pair rms_norm(const Tensor& input, const std::vector<int64_t>& normalized_shape, OptionalTensor weight,
              std::optional<double> eps, double weight_offset) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input)) return call<Pair>("fastops::rms_norm_reference", input, shape, weight, eps, weight_offset);
  NormOutputs r = norm_forward({.op = "rms_norm",
                                .norm = Norm::rms,
                                .input = input,
                                .residual = nullptr,
                                .shape = shape,
                                .weight = weight,
                                .bias = {},
                                .eps = rms_eps(eps, input),
                                .weight_offset = weight_offset});
  return {r.output, r.rstd};
}

// Outputs that are not asked for are empty tensors.
Pair rms_norm_backward(const Tensor& grad, const Tensor& input, const std::vector<int64_t>& normalized_shape,
                       const Tensor& rstd, OptionalTensor weight, std::optional<double> eps, double weight_offset,
                       bool need_input, bool need_weight) {
  Shape shape = shape_of(normalized_shape);
  if (!kernels_take(input))
    return call<Pair>("fastops::rms_norm_backward_reference", grad, input, shape, rstd, weight, eps, weight_offset,
                      need_input, need_weight);
  NormGradients r = norm_backward({.op = "rms_norm_backward",
                                   .forward_op = "rms_norm",
                                   .norm = Norm::rms,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
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

FASTOPS_OP("rms_norm",
           "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None, float weight_offset=0.0)"
           " -> (Tensor, Tensor)",
           rms_norm);
FASTOPS_OP("rms_norm_backward",
           "(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor rstd, Tensor? weight, float? eps, "
           "float weight_offset, bool need_input, bool need_weight) -> (Tensor, Tensor)",
           rms_norm_backward);

}  // namespace fastops::ops
