// linear: what surrounds the GEMM, activation(x + bias) and its derivative
#include "core/rows_edge.h"
#include "kernels/linear.h"

namespace fastops {

FASTOPS_CPU_KERNEL(linear_epilogue, LinearEpilogueCpu);
FASTOPS_CPU_KERNEL(linear_epilogue_backward, LinearEpilogueBackwardCpu);
FASTOPS_CUDA_KERNEL(linear_epilogue, LinearEpilogueCuda);
FASTOPS_CUDA_KERNEL(linear_epilogue_backward, LinearEpilogueBackwardCuda);
FASTOPS_CUDA_KERNEL(linear_epilogue_backward_chunks, LinearEpilogueChunksCuda);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;

static Activation activation_of(const char* op, const std::string& name) {
  for (int k = 0; k < static_cast<int>(std::size(kActivations)); ++k)
    if (name == kActivations[k]) return static_cast<Activation>(k);
  std::string names;
  for (const char* known : kActivations) names.append(names.empty() ? "" : ", ").append(known);
  fail(op, "activation must be one of ", names, ", got ", name);
}

static void check_bias(const char* op, const OptionalTensor& bias, const Tensor& input) {
  FASTOPS_CHECK(input.dim() > 0, op, "input must have at least 1 dimension, got []");
  if (bias) check_parameter(op, "bias", *bias, Shape(input.sizes().data() + input.dim() - 1, 1), input);
}

// `bias_added`: it is in input already, and passed for its gradient alone.
Tensor linear_epilogue(const Tensor& input, OptionalTensor bias, const std::string& activation, bool bias_added) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::linear_epilogue_reference", input, bias, activation, bias_added);
  check_bias("linear", bias, input);
  Tensor output = allocate(input.sizes(), input, *dtype_of(input));
  LinearEpilogue a;
  a.activation = activation_of("linear", activation);
  if (input.numel() == 0) return output;
  const Contiguous x(input);
  a.dtype = *dtype_of(input);
  a.parameter = bias ? *dtype_of(*bias) : a.dtype;
  a.n = input.size(input.dim() - 1);
  a.rows = input.numel() / a.n;
  a.input = x.data();
  if (bias_added) bias.reset();
  if (bias) bias = as_contiguous(*std::move(bias));
  a.bias = data_or_null(bias);
  a.output = output.mutable_data_ptr();
  if (input.is_cuda()) {
    cuda::Launch launch("linear", input.get_device_index());
    launch.check(linear_epilogue_cuda[launch.group()](a, launch.stream()));
  } else {
    LinearEpilogueCpu* kernel = linear_epilogue_cpu[isa()];
    const int64_t work = a.activation < Activation::sigmoid ? 1 : 4;  // an exponential takes as long as so many words
    run_on_threads(a.rows, work * a.n * size_of(a.dtype), [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return output;
}

// `saved` is the output for relu and sigmoid, the input otherwise. The bias gradient is empty if not asked for.
Pair linear_epilogue_backward(const Tensor& grad, const Tensor& saved, OptionalTensor bias,
                              const std::string& activation, bool need_bias, bool bias_added) {
  if (!kernels_take(saved))
    return call<Pair>("fastops::linear_epilogue_backward_reference", grad, saved, bias, activation, need_bias,
                      bias_added);
  const char* op = "linear_epilogue_backward";
  check_bias(op, bias, saved);
  check_alike(op, "grad", grad, "saved", saved);
  const DType dtype = *dtype_of(saved), bias_dtype = bias ? *dtype_of(*bias) : dtype;
  const int64_t n = saved.size(saved.dim() - 1);
  Tensor grad_input = allocate(saved.sizes(), saved, dtype);
  Tensor grad_bias = need_bias ? allocate(std::array<int64_t, 1>{n}, saved, bias_dtype) : nothing(saved, bias_dtype);
  LinearEpilogueBackward a;
  a.activation = activation_of(op, activation);
  if (saved.numel() == 0) {
    if (need_bias) fill_zero(grad_bias);
    return {std::move(grad_input), std::move(grad_bias)};
  }
  const Contiguous g(grad), s(saved);
  a.dtype = dtype;
  a.parameter = bias_dtype;
  a.n = n;
  a.rows = saved.numel() / n;
  a.grad = g.data();
  a.saved = s.data();
  if (bias_added) bias.reset();
  if (bias) bias = as_contiguous(*std::move(bias));
  a.bias = data_or_null(bias);
  a.grad_input = grad_input.mutable_data_ptr();
  a.grad_bias = need_bias ? grad_bias.mutable_data_ptr() : nullptr;
  run_with_bias_sum(op, saved, a, n, bias_dtype, n * size_of(accumulate_type(dtype)), linear_epilogue_backward_cpu,
                    linear_epilogue_backward_cuda, linear_epilogue_backward_chunks_cuda);
  return {std::move(grad_input), std::move(grad_bias)};
}

FASTOPS_OP("linear_epilogue", "(Tensor input, Tensor? bias, str activation, bool bias_added=False) -> Tensor",
           linear_epilogue);
FASTOPS_OP("linear_epilogue_backward",
           "(Tensor grad, Tensor saved, Tensor? bias, str activation, bool need_bias, bool bias_added=False) "
           "-> (Tensor, Tensor)",
           linear_epilogue_backward);

}  // namespace ops
}  // namespace fastops
