// relu_mask: relu that also keeps a bit an element, all that its backward reads
#include "host/pointwise.h"
#include "kernels/relu.h"

namespace fastops {

FASTOPS_CPU_KERNEL(relu_mask, ReluMaskCpu);
FASTOPS_CPU_KERNEL(relu_mask_backward, ReluMaskBackwardCpu);
FASTOPS_CUDA_KERNEL(relu_mask, ReluMaskCuda);
FASTOPS_CUDA_KERNEL(relu_mask_backward, ReluMaskBackwardCuda);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;

// The kernels take one run. A tensor of another layout than the result's is first copied into the result.
static const void* one_run(const Tensor& input, const Tensor& result) {
  if (same_shape(input.strides(), result.strides()) || (input.is_contiguous() && result.is_contiguous()))
    return input.const_data_ptr();
  call<Tensor>("aten::copy_", result, input, false);
  return result.const_data_ptr();
}

// Else there would be fewer elements in memory than the kernel writes.
static void check_dense(const char* op, Shape sizes, Shape stride) {
  int64_t numel = 1, span = 1;
  for (size_t d = 0; d < sizes.size() && sizes.size() == stride.size(); ++d) {
    numel *= sizes[d];
    span += (sizes[d] - 1) * stride[d];
  }
  FASTOPS_CHECK(sizes.size() == stride.size() && (numel == 0 || span == numel), op,
                "stride must be that of a dense tensor of grad's shape ", text_of(sizes), ", got ", text_of(stride));
}

static int64_t mask_bytes(int64_t numel) { return (numel + 7) / 8; }

// The mask is in the order of the output's memory, which is the input's where that is dense.
Pair relu_mask(const Tensor& input) {
  if (!kernels_take(input)) return call<Pair>("fastops::relu_mask_reference", input);
  Tensor output = allocate_elementwise({input}, input.sizes()), mask = allocate_bytes(mask_bytes(input.numel()), input);
  if (input.numel() == 0) return {std::move(output), std::move(mask)};
  ReluMask a{*dtype_of(input), input.numel(), one_run(input, output), output.mutable_data_ptr(),
             static_cast<uint8_t*>(mask.mutable_data_ptr())};
  if (input.is_cuda()) {
    cuda::Launch launch("relu_mask", input.get_device_index());
    launch.check(relu_mask_cuda[launch.group()](a, launch.stream()));
  } else {
    ReluMaskCpu* kernel = relu_mask_cpu[isa()];
    run_on_threads(mask_bytes(a.numel), 8 * size_of(a.dtype),
                   [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return {std::move(output), std::move(mask)};
}

// `stride`: the output's, which the mask follows; without, that of a contiguous one.
Tensor relu_mask_backward(const Tensor& grad, const Tensor& mask, std::optional<std::vector<int64_t>> stride) {
  if (!kernels_take(grad)) return call<Tensor>("fastops::relu_mask_backward_reference", grad, mask, stride);
  const char* op = "relu_mask_backward";
  check_same_device(op, "mask", mask, "grad", grad);
  const int64_t numel = grad.numel(), bytes = mask_bytes(numel);
  FASTOPS_CHECK(mask.scalar_type() == ScalarType::Byte && mask.dim() == 1 && mask.numel() == bytes, op,
                "mask must have shape [", bytes, "] and dtype torch.uint8, got ", text_of(mask.sizes()), " and ",
                text_of(mask.scalar_type()));
  if (stride) check_dense(op, grad.sizes(), Shape(stride->data(), stride->size()));
  Tensor grad_input = stride ? allocate(grad.sizes(), Shape(stride->data(), stride->size()), grad, *dtype_of(grad))
                             : allocate(grad.sizes(), grad, *dtype_of(grad));
  if (numel == 0) return grad_input;
  Tensor bits = as_contiguous(mask);
  ReluMaskBackward a{*dtype_of(grad), numel, one_run(grad, grad_input),
                     static_cast<const uint8_t*>(bits.const_data_ptr()), grad_input.mutable_data_ptr()};
  if (grad.is_cuda()) {
    cuda::Launch launch(op, grad.get_device_index());
    launch.check(relu_mask_backward_cuda[launch.group()](a, launch.stream()));
  } else {
    ReluMaskBackwardCpu* kernel = relu_mask_backward_cpu[isa()];
    run_on_threads(bytes, 8 * size_of(a.dtype), [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return grad_input;
}

FASTOPS_OP("relu_mask", "(Tensor input) -> (Tensor, Tensor)", relu_mask);
FASTOPS_OP("relu_mask_backward", "(Tensor grad, Tensor mask, SymInt[]? stride=None) -> Tensor", relu_mask_backward);

}  // namespace ops
}  // namespace fastops
