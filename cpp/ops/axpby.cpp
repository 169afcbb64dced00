// axpby: alpha·x + beta·y with broadcasting
#include "host/pointwise.h"

namespace fastops {

FASTOPS_POINTWISE(axpby);
FASTOPS_POINTWISE(axpby_backward);

namespace ops {

Tensor axpby(const Tensor& x, const Tensor& y, double alpha, double beta) {
  if (!kernels_take(x)) return call<Tensor>("fastops::axpby_reference", x, y, alpha, beta);
  check_same_kind("axpby", "y", y, "x", x);
  std::vector<int64_t> sizes = broadcast("axpby", "x", x.sizes(), "y", y.sizes());
  Shape shape(sizes.data(), sizes.size());
  Tensor output = allocate_elementwise({x, y}, shape);
  run_pointwise("axpby", axpby_kernels, {output}, {x, y}, {alpha, beta});
  return output;
}

std::tuple<Tensor, Tensor> axpby_backward(const Tensor& grad, double alpha, double beta) {
  if (!kernels_take(grad))
    return call<std::tuple<Tensor, Tensor>>("fastops::axpby_backward_reference", grad, alpha, beta);
  Tensor grad_x = allocate_like(grad), grad_y = allocate_like(grad);
  run_pointwise("axpby_backward", axpby_backward_kernels, {grad_x, grad_y}, {grad}, {alpha, beta});
  return {std::move(grad_x), std::move(grad_y)};
}

FASTOPS_OP("axpby", "(Tensor x, Tensor y, float alpha=1.0, float beta=1.0) -> Tensor", axpby);
FASTOPS_OP("axpby_backward", "(Tensor grad, float alpha, float beta) -> (Tensor, Tensor)", axpby_backward);

}  // namespace ops
}  // namespace fastops
