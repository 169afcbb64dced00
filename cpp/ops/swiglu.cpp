// swiglu: the gate times its sigmoid, times up
#include "host/gated.h"

namespace fastops {

FASTOPS_POINTWISE(swiglu);
FASTOPS_POINTWISE(swiglu_backward);

namespace ops {

using Three = std::tuple<Tensor, Tensor, Tensor>;
static constexpr GatedNames kNames{"swiglu", "gate", "up"}, kBackwardNames{"swiglu_backward", "gate", "up"};

Tensor swiglu(const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved, std::optional<double> limit,
              double offset, const OptionalTensor& row_scale, double alpha) {
  if (!kernels_take(gate))
    return call<Tensor>("fastops::swiglu_reference", gate, up, dim, interleaved, limit, offset, row_scale, alpha);
  return gated_forward(kNames, swiglu_kernels, gate, up, row_scale,
                       {.interleaved = interleaved, .dim = dim, .limit = limit, .alpha = alpha, .offset = offset});
}

Three swiglu_backward(const Tensor& grad, const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved,
                      std::optional<double> limit, double offset, const OptionalTensor& row_scale, double alpha,
                      bool needs_scale) {
  if (!kernels_take(gate))
    return call<Three>("fastops::swiglu_backward_reference", grad, gate, up, dim, interleaved, limit, offset, row_scale,
                       alpha, needs_scale);
  return gated_backward(kBackwardNames, swiglu_backward_kernels, grad, gate, up, row_scale, needs_scale,
                        {.interleaved = interleaved, .dim = dim, .limit = limit, .alpha = alpha, .offset = offset});
}

FASTOPS_OP("swiglu",
           "(Tensor gate, Tensor? up=None, int dim=-1, bool interleaved=False, float? limit=None, float offset=0.0, "
           "Tensor? row_scale=None, float alpha=1.0) -> Tensor",
           swiglu);
FASTOPS_OP("swiglu_backward",
           "(Tensor grad, Tensor gate, Tensor? up, int dim, bool interleaved, float? limit, float offset, "
           "Tensor? row_scale, float alpha, bool needs_scale) -> (Tensor, Tensor, Tensor)",
           swiglu_backward);

}  // namespace ops
}  // namespace fastops
