// softmax: e^(scale·x) / Σ e^(scale·x) along a dimension
#include "host/softmax.h"

namespace fastops::ops {

Tensor softmax(const Tensor& input, int64_t dim, double scale, std::optional<ScalarType> dtype) {
  if (!kernels_take(input, dtype)) return call<Tensor>("fastops::softmax_reference", input, dim, scale, dtype);
  return softmax_forward("softmax", false, input, dim, scale, dtype);
}

// `dtype` is the gradient's: what the forward's input had.
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, double scale,
                        std::optional<ScalarType> dtype) {
  if (!kernels_take(output, dtype))
    return call<Tensor>("fastops::softmax_backward_reference", grad, output, dim, scale, dtype);
  return fastops::softmax_backward("softmax_backward", false, grad, output, dim, scale, dtype);
}

FASTOPS_OP("softmax", "(Tensor input, int dim=-1, float scale=1.0, ScalarType? dtype=None) -> Tensor", softmax);
FASTOPS_OP("softmax_backward",
           "(Tensor grad, Tensor output, int dim=-1, float scale=1.0, ScalarType? dtype=None) -> Tensor",
           softmax_backward);

}  // namespace fastops::ops
