// add_rms_norm: rms_norm of input + residual, and that sum
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

static NormOutputs forward(const Tensor& input, const Tensor& residual, OptionalTensor& weight, int64_t dims,
                           std::optional<double> eps, double weight_offset, bool statistics) {
  return norm_forward({.op = "add_rms_norm",
                       .norm = Norm::rms,
                       .input = input,
                       .residual = &residual,
                       .weight = std::move(weight),
                       .bias = {},
                       .dims = dims,
                       .eps = rms_eps(eps, residual),
                       .weight_offset = weight_offset,
                       .statistics = statistics});
}

Pair add_rms_norm(const Tensor& input, const Tensor& residual, OptionalTensor weight, int64_t dims,
                  std::optional<double> eps, double weight_offset) {
  if (!kernels_take(input))
    return call<Pair>("fastops::add_rms_norm_reference", input, residual, weight, dims, eps, weight_offset);
  NormOutputs r = forward(input, residual, weight, dims, eps, weight_offset, false);
  return {std::move(r.output), *std::move(r.sum)};
}

Triple add_rms_norm_forward(const Tensor& input, const Tensor& residual, OptionalTensor weight, int64_t dims,
                            std::optional<double> eps, double weight_offset) {
  if (!kernels_take(input))
    return call<Triple>("fastops::add_rms_norm_forward_reference", input, residual, weight, dims, eps, weight_offset);
  NormOutputs r = forward(input, residual, weight, dims, eps, weight_offset, true);
  return {std::move(r.output), *std::move(r.sum), *std::move(r.statistics)};
}

// The first gradient is that of input and of residual. Outputs that are not asked for are empty tensors.
Pair add_rms_norm_backward(const Tensor& grad, OptionalTensor grad_sum, const Tensor& sum, const Tensor& rstd,
                           OptionalTensor weight, bool need_input, bool need_weight, std::optional<double> eps,
                           double weight_offset) {
  if (!kernels_take(sum))
    return call<Pair>("fastops::add_rms_norm_backward_reference", grad, grad_sum, sum, rstd, weight, need_input,
                      need_weight, eps, weight_offset);
  NormGradients r = norm_backward({.op = "add_rms_norm_backward",
                                   .forward_op = "add_rms_norm",
                                   .norm = Norm::rms,
                                   .grad = grad,
                                   .grad_sum = tensor_or_null(grad_sum),
                                   .input_name = "sum",
                                   .input = sum,
                                   .statistics = &rstd,
                                   .weight = std::move(weight),
                                   .bias = {},
                                   .weight_offset = weight_offset,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = false});
  return {std::move(r.input), std::move(r.weight)};
}

FASTOPS_OP("add_rms_norm",
           "(Tensor input, Tensor residual, Tensor? weight=None, int dims=1, float? eps=None, "
           "float weight_offset=0.0) -> (Tensor, Tensor)",
           add_rms_norm);
FASTOPS_OP("add_rms_norm_forward",
           "(Tensor input, Tensor residual, Tensor? weight=None, int dims=1, float? eps=None, "
           "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)",
           add_rms_norm_forward);
FASTOPS_OP("add_rms_norm_backward",
           "(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor rstd, Tensor? weight, bool need_input=True, "
           "bool need_weight=True, float? eps=None, float weight_offset=0.0) -> (Tensor, Tensor)",
           add_rms_norm_backward);

}  // namespace fastops::ops
