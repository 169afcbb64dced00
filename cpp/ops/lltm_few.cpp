// lltm for few rows: a whole step in one kernel, on CUDA alone
#include "core/torch_edge.h"
#include "kernels/lltm_few.h"

namespace fastops {

FASTOPS_CUDA_KERNEL(lltm_few, LltmFewCuda);
FASTOPS_CUDA_KERNEL(lltm_few_backward, LltmFewBackwardCuda);

namespace ops {

using Triple = std::tuple<Tensor, Tensor, Tensor>;
using Quintuple = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>;

static bool kernel_takes(const Tensor& input) {
  return input.is_cuda() && kernels_take(input) && input.dim() == 2 && input.size(0) <= plan::lltm::kMostRows;
}

static void check(const char* op, const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                  const Tensor& old_cell) {
  check_alike(op, "old_cell", old_cell, "old_h", old_h);
  FASTOPS_CHECK(old_h.dim() == 2 && old_h.size(0) == input.size(0), op, "old_h must have shape [", input.size(0),
                ", state], got ", text_of(old_h.sizes()));
  const int64_t state = old_h.size(1);
  auto check_shape = [&](const char* name, const Tensor& tensor, Shape shape) {
    check_same_kind(op, name, tensor, "input", input);
    FASTOPS_CHECK(same_shape(tensor.sizes(), shape), op, name, " must have shape ", text_of(shape), ", got ",
                  text_of(tensor.sizes()));
  };
  check_same_kind(op, "old_h", old_h, "input", input);
  check_shape("weights", weights, std::array<int64_t, 2>{3 * state, state + input.size(1)});
  check_shape("bias", bias, std::array<int64_t, 1>{3 * state});
}

// A kernel may be launched with its arguments while it lives.
class StepInputs {
 public:
  StepInputs(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& old_h,
             const Tensor& old_cell)
      : sizes_{input.size(0), input.size(1), old_h.size(1)},
        dtype_(*dtype_of(input)),
        input_(input),
        weights_(weights),
        bias_(bias),
        old_h_(old_h),
        old_cell_(old_cell) {}
  LltmFewInputs arguments() const {
    return {dtype_,          sizes_[0],    sizes_[1],     sizes_[2],       input_.data(),
            weights_.data(), bias_.data(), old_h_.data(), old_cell_.data()};
  }

 private:
  std::array<int64_t, 3> sizes_;
  DType dtype_;
  Contiguous input_, weights_, bias_, old_h_, old_cell_;
};

Triple lltm_few(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& old_h,
                const Tensor& old_cell) {
  if (!kernel_takes(input)) return call<Triple>("fastops::lltm_few_reference", input, weights, bias, old_h, old_cell);
  check("lltm", input, weights, bias, old_h, old_cell);
  const DType dtype = *dtype_of(input);
  Tensor new_h = allocate(old_h.sizes(), input, dtype), new_cell = allocate(old_h.sizes(), input, dtype);
  Tensor gates = allocate(std::array<int64_t, 2>{input.size(0), bias.size(0)}, input, accumulate_type(dtype));
  if (old_h.numel() > 0) {
    const StepInputs inputs(input, weights, bias, old_h, old_cell);
    const LltmFew a{inputs.arguments(), new_h.mutable_data_ptr(), new_cell.mutable_data_ptr(),
                    gates.mutable_data_ptr()};
    cuda::Launch launch("lltm", input.get_device_index());
    launch.check(lltm_few_cuda[launch.group()](a, launch.stream()));
  }
  return {std::move(new_h), std::move(new_cell), std::move(gates)};
}

// Gradients for input, weights, bias, old_h and old_cell.
Quintuple lltm_few_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& gates, const Tensor& input,
                            const Tensor& weights, const Tensor& bias, const Tensor& old_h, const Tensor& old_cell) {
  if (!kernel_takes(input))
    return call<Quintuple>("fastops::lltm_few_backward_reference", grad_h, grad_cell, gates, input, weights, bias,
                           old_h, old_cell);
  const char* op = "lltm_backward";
  check(op, input, weights, bias, old_h, old_cell);
  check_alike(op, "grad_h", grad_h, "old_cell", old_cell);
  check_alike(op, "grad_cell", grad_cell, "old_cell", old_cell);
  const DType dtype = *dtype_of(input), stat = accumulate_type(dtype);
  FASTOPS_CHECK(gates.dim() == 2 && gates.size(0) == input.size(0) && gates.size(1) == bias.size(0) &&
                    dtype_of(gates) == stat && same_device(gates, input),
                op, "gates must be the forward's");
  Quintuple out{allocate(input.sizes(), input, dtype), allocate(weights.sizes(), input, dtype),
                allocate(bias.sizes(), input, dtype), allocate(old_h.sizes(), input, dtype),
                allocate(old_h.sizes(), input, dtype)};
  auto& [grad_input, grad_weights, grad_bias, grad_old_h, grad_old_cell] = out;
  if (old_h.numel() == 0) {
    for (const Tensor* t : {&grad_input, &grad_weights, &grad_bias}) fill_zero(*t);
    return out;
  }
  const StepInputs inputs(input, weights, bias, old_h, old_cell);
  const Contiguous gh(grad_h), gc(grad_cell), g(gates);
  const LltmFewBackward a{inputs.arguments(),
                          gh.data(),
                          gc.data(),
                          g.data(),
                          grad_input.mutable_data_ptr(),
                          grad_weights.mutable_data_ptr(),
                          grad_bias.mutable_data_ptr(),
                          grad_old_h.mutable_data_ptr(),
                          grad_old_cell.mutable_data_ptr()};
  cuda::Launch launch(op, input.get_device_index());
  launch.check(lltm_few_backward_cuda[launch.group()](a, launch.stream()));
  return out;
}

FASTOPS_OP("lltm_few",
           "(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell) -> (Tensor, Tensor, Tensor)",
           lltm_few);
FASTOPS_OP("lltm_few_backward",
           "(Tensor grad_h, Tensor grad_cell, Tensor gates, Tensor input, Tensor weights, Tensor bias, Tensor old_h, "
           "Tensor old_cell) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
           lltm_few_backward);

}  // namespace ops
}  // namespace fastops
