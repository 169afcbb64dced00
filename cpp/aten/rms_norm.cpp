// F.rms_norm: aten's statistics are ours, rstd in the type that is computed in, under another shape.
#include "aten/norm.h"

namespace fastops::aten {

Pair fused_rms_norm(const Tensor& input, const Sizes& normalized_shape, OptionalTensor weight,
                    std::optional<double> eps) {
  drop_undefined(weight);
  if (!supports(input, normalized_shape, weight, std::nullopt))
    return call<Pair>("fastops::_fused_rms_norm_before", input, normalized_shape, weight, eps);
  const size_t dims = normalized_shape.size();
  NormOutputs r = norm_forward({.op = "rms_norm",
                                .norm = Norm::rms,
                                .input = input,
                                .residual = nullptr,
                                .weight = weight,
                                .bias = {},
                                .dims = static_cast<int64_t>(dims),
                                .eps = rms_eps(eps, input),
                                .weight_offset = 0,
                                .statistics = true});
  return {std::move(r.output), reshaped(*r.statistics, statistics_shape(input, dims))};
}

Pair fused_rms_norm_backward(const Tensor& grad, const Tensor& input, const Sizes& normalized_shape, const Tensor& rstd,
                             OptionalTensor weight, const Mask& output_mask) {
  drop_undefined(weight);
  if (!supports(input, normalized_shape, weight, std::nullopt) || !same_dtype(grad, input) || !dtype_of(rstd))
    return call<Pair>("fastops::_fused_rms_norm_backward_before", grad, input, normalized_shape, rstd, weight,
                      output_mask);
  const size_t dims = normalized_shape.size(), leading = input.dim() - dims;
  const Tensor found = as_contiguous(to_dtype(rstd, accumulate_type(*dtype_of(input))));
  const Tensor statistics = reshaped(found, {input.sizes().begin(), input.sizes().begin() + leading});
  const bool need_weight = output_mask[1] && weight;
  NormGradients r = norm_backward({.op = "rms_norm_backward",
                                   .forward_op = "rms_norm",
                                   .norm = Norm::rms,
                                   .grad = grad,
                                   .grad_sum = nullptr,
                                   .input_name = "input",
                                   .input = input,
                                   .statistics = &statistics,
                                   .weight = weight,
                                   .bias = {},
                                   .weight_offset = 0,
                                   .need_input = output_mask[0],
                                   .need_weight = need_weight,
                                   .need_bias = false});
  return {or_undefined(output_mask[0], std::move(r.input)), or_undefined(need_weight, std::move(r.weight))};
}

}  // namespace fastops::aten
