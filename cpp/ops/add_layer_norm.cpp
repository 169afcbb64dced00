// add_layer_norm: layer_norm of input + residual, and that sum
#include "core/norm_edge.h"

namespace fastops::ops {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

static NormOutputs forward(const Tensor& input, const Tensor& residual, OptionalTensor& weight, OptionalTensor& bias,
                           int64_t dims, double eps, double weight_offset, bool statistics) {
  return norm_forward({.op = "add_layer_norm",
                       .norm = Norm::layer,
                       .input = input,
                       .residual = &residual,
                       .weight = std::move(weight),
                       .bias = std::move(bias),
                       .dims = dims,
                       .eps = eps,
                       .weight_offset = weight_offset,
                       .statistics = statistics});
}

Pair add_layer_norm(const Tensor& input, const Tensor& residual, OptionalTensor weight, OptionalTensor bias,
                    int64_t dims, double eps, double weight_offset) {
  if (!kernels_take(input))
    return call<Pair>("fastops::add_layer_norm_reference", input, residual, weight, bias, dims, eps, weight_offset);
  NormOutputs r = forward(input, residual, weight, bias, dims, eps, weight_offset, false);
  return {std::move(r.output), *std::move(r.sum)};
}

Triple add_layer_norm_forward(const Tensor& input, const Tensor& residual, OptionalTensor weight, OptionalTensor bias,
                              int64_t dims, double eps, double weight_offset) {
  if (!kernels_take(input))
    return call<Triple>("fastops::add_layer_norm_forward_reference", input, residual, weight, bias, dims, eps,
                        weight_offset);
  NormOutputs r = forward(input, residual, weight, bias, dims, eps, weight_offset, true);
  return {std::move(r.output), *std::move(r.sum), *std::move(r.statistics)};
}

// The first gradient is that of input and of residual. Outputs that are not asked for are empty tensors.
Triple add_layer_norm_backward(const Tensor& grad, OptionalTensor grad_sum, const Tensor& sum, const Tensor& statistics,
                               OptionalTensor weight, OptionalTensor bias, bool need_input, bool need_weight,
                               bool need_bias, double eps, double weight_offset) {
  if (!kernels_take(sum))
    return call<Triple>("fastops::add_layer_norm_backward_reference", grad, grad_sum, sum, statistics, weight, bias,
                        need_input, need_weight, need_bias, eps, weight_offset);
  NormGradients r = norm_backward({.op = "add_layer_norm_backward",
                                   .forward_op = "add_layer_norm",
                                   .norm = Norm::layer,
                                   .grad = grad,
                                   .grad_sum = tensor_or_null(grad_sum),
                                   .input_name = "sum",
                                   .input = sum,
                                   .statistics = &statistics,
                                   .weight = std::move(weight),
                                   .bias = std::move(bias),
                                   .weight_offset = weight_offset,
                                   .need_input = need_input,
                                   .need_weight = need_weight,
                                   .need_bias = need_bias});
  return {std::move(r.input), std::move(r.weight), *std::move(r.bias)};
}

FASTOPS_OP("add_layer_norm",
           "(Tensor input, Tensor residual, Tensor? weight=None, Tensor? bias=None, int dims=1, float eps=1e-05, "
           "float weight_offset=0.0) -> (Tensor, Tensor)",
           add_layer_norm);
FASTOPS_OP("add_layer_norm_forward",
           "(Tensor input, Tensor residual, Tensor? weight=None, Tensor? bias=None, int dims=1, float eps=1e-05, "
           "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)",
           add_layer_norm_forward);
FASTOPS_OP("add_layer_norm_backward",
           "(Tensor grad, Tensor? grad_sum, Tensor sum, Tensor statistics, Tensor? weight, Tensor? bias, "
           "bool need_input=True, bool need_weight=True, bool need_bias=True, float eps=1e-05, "
           "float weight_offset=0.0) -> (Tensor, Tensor, Tensor)",
           add_layer_norm_backward);

}  // namespace fastops::ops
