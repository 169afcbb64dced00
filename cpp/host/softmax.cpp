#include "host/softmax.h"

#include "host/row.h"

namespace fastops {

FASTOPS_CPU_KERNEL(softmax, RowsCpu<Softmax>);
FASTOPS_CPU_KERNEL(softmax_segments, RowSegmentsCpu<Softmax>);
FASTOPS_CPU_KERNEL(softmax_backward, RowsCpu<SoftmaxBackward>);
FASTOPS_CPU_KERNEL(softmax_backward_segments, RowSegmentsCpu<SoftmaxBackward>);
FASTOPS_CUDA_KERNEL(softmax, SoftmaxCuda);
FASTOPS_CUDA_KERNEL(softmax_backward, SoftmaxBackwardCuda);

// Between these the kernels convert: f32 and a half type.
static bool widens(DType narrow, DType wide) { return size_of(narrow) == 2 && wide == DType::f32; }

Tensor softmax_forward(const char* op, bool log, const Tensor& input, int64_t dim, double scale,
                       std::optional<ScalarType> dtype) {
  dim = wrap_dim(op, dim, "input", input);
  const DType own = *dtype_of(input), result = dtype ? *dtype_of(*dtype) : own;
  if (result != own && !widens(own, result))
    return softmax_forward(op, log, to_dtype(input, result), dim, scale, std::nullopt);
  // The CUDA kernels need a scale that keeps the order of numbers; what this leaves is 0, or NaN of an infinity.
  if (as_computed(scale, own) == 0 && input.is_cuda())
    return softmax_forward(op, log, call<Tensor>("fastops::axpby", input, input, 0.0, 0.0), dim, 1.0, dtype);
  RowResult output(input, dim, result);
  const TensorRows x = rows_along(input, dim, result);
  const Softmax a{log, own, result, x.count, x.n, x.view, scale, output.data()};
  run_rows(op, input, a, softmax_cpu, softmax_segments_cpu, softmax_cuda);
  return std::move(output).finish();
}

Tensor softmax_backward(const char* op, bool log, const Tensor& grad, const Tensor& output, int64_t dim, double scale,
                        std::optional<ScalarType> dtype) {
  dim = wrap_dim(op, dim, "output", output);
  check_alike(op, "grad", grad, "output", output);
  const DType own = *dtype_of(output), result = dtype ? *dtype_of(*dtype) : own;
  if (result != own && !widens(result, own))
    return to_dtype(softmax_backward(op, log, grad, output, dim, scale, std::nullopt), result);
  RowResult grad_input(output, dim, result);
  const TensorRows g = rows_along(grad, dim, result), y = rows_along(output, dim, result);
  const SoftmaxBackward a{log, own, result, y.count, y.n, g.view, y.view, scale, grad_input.data()};
  run_rows(op, output, a, softmax_backward_cpu, softmax_backward_segments_cpu, softmax_backward_cuda);
  return std::move(grad_input).finish();
}

}  // namespace fastops
