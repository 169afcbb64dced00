#include "host/mixed_norm.h"

namespace fastops {
namespace {

DType dtype(const Tensor& tensor) { return *dtype_of(tensor); }

bool is_half(DType t) { return size_of(t) == 2; }

// The promotion of the rows; float64 where a parameter is, which nothing else has room for.
DType rows_dtype(DType rows, const OptionalTensor& weight, const OptionalTensor& bias) {
  for (const OptionalTensor* t : {&weight, &bias})
    if (*t && dtype(**t) == DType::f64) return DType::f64;
  return rows;
}

bool has_dtype(const OptionalTensor& parameter, DType rows) {
  return !parameter || dtype(*parameter) == rows || (is_half(rows) && dtype(*parameter) == DType::f32);
}

OptionalTensor for_rows(OptionalTensor parameter, DType rows) {
  if (!parameter || has_dtype(parameter, rows)) return parameter;
  return to_dtype(*std::move(parameter), accumulate_type(rows));
}

}  // namespace

bool one_dtype(const NormForwardCall& c) {
  const DType rows = dtype(c.input);
  return (!c.residual || dtype(*c.residual) == rows) && has_dtype(c.weight, rows) && has_dtype(c.bias, rows);
}

bool one_dtype(const NormBackwardCall& c) {
  const DType rows = dtype(c.input);
  return dtype(c.grad) == rows && (!c.grad_sum || dtype(*c.grad_sum) == rows) && has_dtype(c.weight, rows) &&
         has_dtype(c.bias, rows);
}

NormOutputs mixed_norm_forward(NormForwardCall c) {
  const DType own = dtype(c.input), of_sum = c.residual ? dtype(*c.residual) : own;
  const DType rows = rows_dtype(promote(own, of_sum), c.weight, c.bias);
  Tensor input = to_dtype(c.input, rows);
  OptionalTensor residual, sum;
  if (c.residual) residual = to_dtype(*c.residual, rows);
  if (residual && of_sum != rows) {  // rounded before it is normalised
    sum = as_contiguous(to_dtype(call<Tensor>("fastops::axpby", input, *residual, 1.0, 1.0), of_sum));
    input = to_dtype(*sum, rows);
    residual.reset();
  }
  NormOutputs out = norm_forward({.op = c.op,
                                  .norm = c.norm,
                                  .input = input,
                                  .residual = residual ? &*residual : nullptr,
                                  .weight = for_rows(std::move(c.weight), rows),
                                  .bias = for_rows(std::move(c.bias), rows),
                                  .dims = c.dims,
                                  .eps = c.eps,
                                  .weight_offset = c.weight_offset,
                                  .statistics = c.statistics});
  out.output = to_dtype(std::move(out.output), own);
  if (sum) out.sum = std::move(sum);
  return out;
}

NormGradients mixed_norm_backward(NormBackwardCall c) {
  const DType promoted = promote(dtype(c.grad), dtype(c.input)), rows = rows_dtype(promoted, c.weight, c.bias);
  const Tensor grad = to_dtype(c.grad, rows), input = to_dtype(c.input, rows);
  OptionalTensor grad_sum;
  if (c.grad_sum) grad_sum = to_dtype(*c.grad_sum, rows);
  const DType of_weight = c.weight ? dtype(*c.weight) : promoted, of_bias = c.bias ? dtype(*c.bias) : promoted;
  NormGradients out = norm_backward({.op = c.op,
                                     .forward_op = c.forward_op,
                                     .norm = c.norm,
                                     .grad = grad,
                                     .grad_sum = tensor_or_null(grad_sum),
                                     .input_name = c.input_name,
                                     .input = input,
                                     .statistics = c.statistics,
                                     .weight = for_rows(std::move(c.weight), rows),
                                     .bias = for_rows(std::move(c.bias), rows),
                                     .weight_offset = c.weight_offset,
                                     .need_input = c.need_input,
                                     .need_weight = c.need_weight,
                                     .need_bias = c.need_bias});
  out.input = to_dtype(std::move(out.input), promoted);
  out.weight = to_dtype(std::move(out.weight), of_weight);
  if (out.bias) out.bias = to_dtype(*std::move(out.bias), of_bias);
  return out;
}

}  // namespace fastops
