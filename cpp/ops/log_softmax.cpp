// log_softmax: scale·x - log Σ e^(scale·x) along a dimension
#include "host/softmax.h"

namespace fastops::ops {

Tensor log_softmax(const Tensor& input, int64_t dim, double scale, std::optional<ScalarType> dtype) {
  if (!kernels_take(input, dtype)) return call<Tensor>("fastops::log_softmax_reference", input, dim, scale, dtype);
  return softmax_forward("log_softmax", true, input, dim, scale, dtype);
}

// `dtype` is the gradient's: what the forward's input had.
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, double scale,
                            std::optional<ScalarType> dtype) {
  if (!kernels_take(output, dtype))
    return call<Tensor>("fastops::log_softmax_backward_reference", grad, output, dim, scale, dtype);
  return fastops::softmax_backward("log_softmax_backward", true, grad, output, dim, scale, dtype);
}

FASTOPS_OP("log_softmax", "(Tensor input, int dim=-1, float scale=1.0, ScalarType? dtype=None) -> Tensor", log_softmax);
FASTOPS_OP("log_softmax_backward",
           "(Tensor grad, Tensor output, int dim=-1, float scale=1.0, ScalarType? dtype=None) -> Tensor",
           log_softmax_backward);

}  // namespace fastops::ops
