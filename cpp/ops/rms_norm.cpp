// rms_norm: x·rstd·(weight + weight_offset) over the trailing dimensions
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;

static NormOutputs forward(const Tensor& input, OptionalTensor& weight, int64_t dims, std::optional<double> eps,
                           double weight_offset, bool statistics) {
  return norm_forward({.op = "rms_norm",
                       .norm = Norm::rms,
                       .input = input,
                       .residual = nullptr,
                       .weight = std::move(weight),
                       .bias = {},
                       .dims = dims,
                       .eps = rms_eps(eps, input),
                       .weight_offset = weight_offset,
                       .statistics = statistics});
}

Tensor rms_norm(const Tensor& input, OptionalTensor weight, int64_t dims, std::optional<double> eps,
                double weight_offset) {
  if (!kernels_take(input)) return call<Tensor>("fastops::rms_norm_reference", input, weight, dims, eps, weight_offset);
  return forward(input, weight, dims, eps, weight_offset, false).output;
}

Pair rms_norm_forward(const Tensor& input, OptionalTensor weight, int64_t dims, std::optional<double> eps,
                      double weight_offset) {
  if (!kernels_take(input))
    return call<Pair>("fastops::rms_norm_forward_reference", input, weight, dims, eps, weight_offset);
  NormOutputs r = forward(input, weight, dims, eps, weight_offset, true);
  return {std::move(r.output), *std::move(r.statistics)};
}

// Outputs that are not asked for are empty tensors.
Pair rms_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& rstd, OptionalTensor weight,
                       bool need_input, bool need_weight, std::optional<double> eps, double weight_offset) {
  if (!kernels_take(input))
    return call<Pair>("fastops::rms_norm_backward_reference", grad, input, rstd, weight, need_input, need_weight, eps,
                      weight_offset);
  NormGradients r = norm_backward({.op = "rms_norm_backward",
                                   .forward_op = "rms_norm",
                                   .norm = Norm::rms,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
                                   .statistics = &rstd,
                                   .weight = std::move(weight),
                                   .bias = {},
                                   .weight_offset = weight_offset,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = false});
  return {std::move(r.input), std::move(r.weight)};
}

FASTOPS_OP("rms_norm",
           "(Tensor input, Tensor? weight=None, int dims=1, float? eps=None, float weight_offset=0.0) -> Tensor",
           rms_norm);
FASTOPS_OP("rms_norm_forward",
           "(Tensor input, Tensor? weight=None, int dims=1, float? eps=None, float weight_offset=0.0)"
           " -> (Tensor, Tensor)",
           rms_norm_forward);
FASTOPS_OP("rms_norm_backward",
           "(Tensor grad, Tensor input, Tensor rstd, Tensor? weight, bool need_input=True, bool need_weight=True, "
           "float? eps=None, float weight_offset=0.0) -> (Tensor, Tensor)",
           rms_norm_backward);

}  // namespace fastops::ops
