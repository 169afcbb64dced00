// layer_norm: (x - mean)·rstd·(weight + weight_offset) + bias over the trailing dimensions
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

static NormOutputs forward(const Tensor& input, OptionalTensor& weight, OptionalTensor& bias, int64_t dims, double eps,
                           double weight_offset, bool statistics) {
  return norm_forward({.op = "layer_norm",
                       .norm = Norm::layer,
                       .input = input,
                       .residual = nullptr,
                       .weight = std::move(weight),
                       .bias = std::move(bias),
                       .dims = dims,
                       .eps = eps,
                       .weight_offset = weight_offset,
                       .statistics = statistics});
}

Tensor layer_norm(const Tensor& input, OptionalTensor weight, OptionalTensor bias, int64_t dims, double eps,
                  double weight_offset) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::layer_norm_reference", input, weight, bias, dims, eps, weight_offset);
  return forward(input, weight, bias, dims, eps, weight_offset, false).output;
}

Pair layer_norm_forward(const Tensor& input, OptionalTensor weight, OptionalTensor bias, int64_t dims, double eps,
                        double weight_offset) {
  if (!kernels_take(input))
    return call<Pair>("fastops::layer_norm_forward_reference", input, weight, bias, dims, eps, weight_offset);
  NormOutputs r = forward(input, weight, bias, dims, eps, weight_offset, true);
  return {std::move(r.output), *std::move(r.statistics)};
}

// Outputs that are not asked for are empty tensors.
Triple layer_norm_backward(const Tensor& grad, const Tensor& input, const Tensor& statistics, OptionalTensor weight,
                           OptionalTensor bias, bool need_input, bool need_weight, bool need_bias, double eps,
                           double weight_offset) {
  if (!kernels_take(input))
    return call<Triple>("fastops::layer_norm_backward_reference", grad, input, statistics, weight, bias, need_input,
                        need_weight, need_bias, eps, weight_offset);
  NormGradients r = norm_backward({.op = "layer_norm_backward",
                                   .forward_op = "layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
                                   .statistics = &statistics,
                                   .weight = std::move(weight),
                                   .bias = std::move(bias),
                                   .weight_offset = weight_offset,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = need_bias});
  return {std::move(r.input), std::move(r.weight), *std::move(r.bias)};
}

FASTOPS_OP("layer_norm",
           "(Tensor input, Tensor? weight=None, Tensor? bias=None, int dims=1, float eps=1e-05, "
           "float weight_offset=0.0) -> Tensor",
           layer_norm);
FASTOPS_OP("layer_norm_forward",
           "(Tensor input, Tensor? weight=None, Tensor? bias=None, int dims=1, float eps=1e-05, "
           "float weight_offset=0.0) -> (Tensor, Tensor)",
           layer_norm_forward);
FASTOPS_OP("layer_norm_backward",
           "(Tensor grad, Tensor input, Tensor statistics, Tensor? weight, Tensor? bias, "
           "bool need_input=True, bool need_weight=True, bool need_bias=True, float eps=1e-05, "
           "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)",
           layer_norm_backward);

}  // namespace fastops::ops
