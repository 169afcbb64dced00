// F.softmax and F.log_softmax, and what calls log_softmax: F.cross_entropy.
#include "host/softmax.h"

#include "aten/kernels.h"

namespace fastops::aten {
namespace {

bool supports(const Tensor& tensor, int64_t dim) {
  return kernels_take(tensor) && tensor.numel() > 0 && -tensor.dim() <= dim && dim < tensor.dim();
}

// aten asks for float32 of a half type, and takes float32 gradients of it back, on CUDA alone.
bool widens(std::optional<DType> narrow, const Tensor& of) { return of.is_cuda() && narrow && size_of(*narrow) == 2; }

Tensor forward(const char* op, const char* before, bool log, const Tensor& input, int64_t dim, bool half_to_float) {
  if (!supports(input, dim) || (half_to_float && !widens(dtype_of(input), input)))
    return call<Tensor>(before, input, dim, half_to_float);
  const auto dtype = half_to_float ? std::optional(ScalarType::Float) : std::nullopt;
  return softmax_forward(op, log, input, dim, 1, dtype);
}
Tensor backward(const char* op, const char* before, bool log, const Tensor& grad, const Tensor& output, int64_t dim,
                ScalarType input_dtype) {
  const bool same = input_dtype == output.scalar_type();
  const bool narrows = output.scalar_type() == ScalarType::Float && widens(dtype_of(input_dtype), output);
  if (!supports(output, dim) || !(same || narrows) || !same_dtype(grad, output))
    return call<Tensor>(before, grad, output, dim, input_dtype);
  return fastops::softmax_backward(op, log, grad, output, dim, 1, same ? std::nullopt : std::optional(input_dtype));
}

}  // namespace

Tensor softmax(const Tensor& input, int64_t dim, bool half_to_float) {
  return forward("softmax", "fastops::_softmax_before", false, input, dim, half_to_float);
}
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_dtype) {
  return backward("softmax_backward", "fastops::_softmax_backward_data_before", false, grad, output, dim, input_dtype);
}
Tensor log_softmax(const Tensor& input, int64_t dim, bool half_to_float) {
  return forward("log_softmax", "fastops::_log_softmax_before", true, input, dim, half_to_float);
}
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_dtype) {
  return backward("log_softmax_backward", "fastops::_log_softmax_backward_data_before", true, grad, output, dim,
                  input_dtype);
}

}  // namespace fastops::aten
