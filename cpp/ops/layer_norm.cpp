// layer_norm: (x - mean)·rstd·weight + bias over the trailing dimensions
#include "core/rows_edge.h"
#include "kernels/layer_norm.h"

namespace fastops {

FASTOPS_CPU_KERNEL(layer_norm, LayerNormForwardCpu);
FASTOPS_CPU_KERNEL(layer_norm_backward, LayerNormBackwardCpu);
FASTOPS_CUDA_KERNEL(layer_norm, LayerNormForwardCuda);
FASTOPS_CUDA_KERNEL(layer_norm_backward, LayerNormBackwardCuda);
FASTOPS_CUDA_KERNEL(layer_norm_backward_plan, LayerNormPlanCuda);

namespace ops {

using Triple = std::tuple<Tensor, Tensor, Tensor>;

static void check(const char* op, const Tensor& input, Shape shape, const OptionalTensor& weight,
                  const OptionalTensor& bias) {
  FASTOPS_CHECK(shape.size() > 0, op, "normalized_shape must have at least 1 dimension, got []");
  const int64_t leading = input.dim() - static_cast<int64_t>(shape.size());
  FASTOPS_CHECK(leading >= 0 && same_shape(Shape(input.sizes().data() + leading, shape.size()), shape), op,
                "input must end in normalized_shape ", text_of(shape), ", got shape ", text_of(input.sizes()));
  if (weight) check_parameter(op, "weight", *weight, shape, input);
  if (bias) check_parameter(op, "bias", *bias, shape, input);
}

Triple layer_norm(const Tensor& input, const std::vector<int64_t>& normalized_shape, OptionalTensor weight,
                  OptionalTensor bias, double eps) {
  Shape shape(normalized_shape.data(), normalized_shape.size());
  if (!kernels_take(input)) return call<Triple>("fastops::layer_norm_reference", input, shape, weight, bias, eps);
  check("layer_norm", input, shape, weight, bias);

  const DType dtype = *dtype_of(input), stat = accumulate_type(dtype);
  const int64_t dims = static_cast<int64_t>(shape.size());
  Shape leading(input.sizes().data(), input.dim() - dims);
  Tensor output = allocate(input.sizes(), input, dtype);
  Tensor mean = allocate(leading, input, stat), rstd = allocate(leading, input, stat);
  if (input.numel() == 0) {
    fill_zero(mean);
    fill_zero(rstd);
    return {std::move(output), std::move(mean), std::move(rstd)};
  }

  Rows rows = as_rows(input, dims);
  LayerNormForward a;
  a.dtype = dtype;
  a.parameter = parameter_dtype(input, weight, bias);
  a.rows = rows.count;
  a.n = rows.n;
  a.input = rows.data();
  a.input_stride = rows.stride;
  a.weight = data_or_null(weight);
  a.bias = data_or_null(bias);
  a.output = output.mutable_data_ptr();
  a.mean = mean.mutable_data_ptr();
  a.rstd = rstd.mutable_data_ptr();
  a.eps = eps;
  if (input.is_cuda()) {
    cuda::Launch launch("layer_norm", input.get_device_index());
    launch.check(layer_norm_cuda[launch.group()](a, launch.stream()));
  } else {
    LayerNormForwardCpu* kernel = layer_norm_cpu[isa()];
    run_on_threads(a.rows, a.n * size_of(dtype), [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return {std::move(output), std::move(mean), std::move(rstd)};
}

// Outputs that are not asked for are empty tensors.
Triple layer_norm_backward(const Tensor& grad, const Tensor& input, const std::vector<int64_t>& normalized_shape,
                           const Tensor& mean, const Tensor& rstd, OptionalTensor weight, OptionalTensor bias,
                           double eps, bool need_input, bool need_weight, bool need_bias) {
  Shape shape(normalized_shape.data(), normalized_shape.size());
  if (!kernels_take(input))
    return call<Triple>("fastops::layer_norm_backward_reference", grad, input, shape, mean, rstd, weight, bias, eps,
                        need_input, need_weight, need_bias);
  const char* op = "layer_norm_backward";
  check(op, input, shape, weight, bias);
  check_alike(op, "grad", grad, "input", input);
  const DType dtype = *dtype_of(input), stat = accumulate_type(dtype);
  const int64_t dims = static_cast<int64_t>(shape.size());
  Shape leading(input.sizes().data(), input.dim() - dims);
  for (const Tensor* t : {&mean, &rstd}) {
    const char* name = t == &mean ? "mean" : "rstd";
    check_same_device(op, name, *t, "input", input);
    FASTOPS_CHECK(same_shape(t->sizes(), leading) && dtype_of(*t) == stat && t->is_contiguous(), op,
                  name, " must be layer_norm's own, contiguous, ", text_of(leading), " ", text_of(scalar_type(stat)),
                  ", got ", text_of(t->sizes()), " ", text_of(t->scalar_type()));
  }

  const DType weight_dtype = weight ? *dtype_of(*weight) : dtype, bias_dtype = bias ? *dtype_of(*bias) : dtype;
  Tensor grad_input = need_input ? allocate(input.sizes(), input, dtype) : nothing(input, dtype);
  Tensor grad_weight = need_weight ? allocate(shape, input, weight_dtype) : nothing(input, weight_dtype);
  Tensor grad_bias = need_bias ? allocate(shape, input, bias_dtype) : nothing(input, bias_dtype);
  if (input.numel() == 0) {
    if (need_weight) fill_zero(grad_weight);
    if (need_bias) fill_zero(grad_bias);
    return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
  }

  Rows x = as_rows(input, dims), g = as_rows(grad, dims);
  LayerNormBackward a;
  a.dtype = dtype;
  a.parameter = weight_dtype;
  a.rows = x.count;
  a.n = x.n;
  a.grad = g.data();
  a.grad_stride = g.stride;
  a.input = x.data();
  a.input_stride = x.stride;
  a.mean = mean.const_data_ptr();
  a.rstd = rstd.const_data_ptr();
  if (weight) weight = as_contiguous(*std::move(weight));
  a.weight = data_or_null(weight);
  a.grad_input = need_input ? grad_input.mutable_data_ptr() : nullptr;
  a.partial = nullptr;
  a.chunks = cpu_chunks(a.rows);
  a.scratch = 0;

  Tensor partial = nothing(input, stat);
  const bool sums = need_weight || need_bias;
  auto make_partial = [&] {
    if (!sums) return;
    partial = allocate(std::array<int64_t, 1>{a.chunks * 2 * a.n + a.scratch}, input, stat);
    a.partial = partial.mutable_data_ptr();
  };
  if (input.is_cuda()) {
    cuda::Launch launch(op, input.get_device_index());
    layer_norm_backward_plan_cuda[launch.group()](a);
    make_partial();
    launch.check(layer_norm_backward_cuda[launch.group()](a, launch.stream()));
  } else {
    make_partial();
    const int64_t rows_each = (a.rows + a.chunks - 1) / a.chunks;
    LayerNormBackwardCpu* kernel = layer_norm_backward_cpu[isa()];
    run_on_threads(a.chunks, rows_each * a.n * size_of(dtype),
                   [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  if (!sums) return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};

  ColumnSum columns[2];
  int count = 0;
  auto add = [&](DType to, const Tensor& result, int64_t which) {
    const char* from = static_cast<const char*>(a.partial) + which * a.n * size_of(stat);
    columns[count++] = {stat, to, from, a.chunks, 2 * a.n, a.n, result.mutable_data_ptr()};
  };
  if (need_weight) add(weight_dtype, grad_weight, 0);
  if (need_bias) add(bias_dtype, grad_bias, 1);
  sum_columns(op, input, columns, count);
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

FASTOPS_OP("layer_norm",
           "(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-05)"
           " -> (Tensor, Tensor, Tensor)",
           layer_norm);
FASTOPS_OP(
    "layer_norm_backward",
    "(Tensor grad, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, "
    "float eps, bool need_input, bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
    layer_norm_backward);

}  // namespace ops
}  // namespace fastops
