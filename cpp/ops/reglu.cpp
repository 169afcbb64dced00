// reglu: the gate where it is above 0, times up
#include "host/gated.h"

namespace fastops {

FASTOPS_POINTWISE(reglu);
FASTOPS_POINTWISE(reglu_backward);

namespace ops {

using Three = std::tuple<Tensor, Tensor, Tensor>;
static constexpr GatedNames kNames{"reglu", "gate", "up"}, kBackwardNames{"reglu_backward", "gate", "up"};

Tensor reglu(const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved, std::optional<double> limit,
             double offset, const OptionalTensor& row_scale) {
  if (!kernels_take(gate))
    return call<Tensor>("fastops::reglu_reference", gate, up, dim, interleaved, limit, offset, row_scale);
  return gated_forward(kNames, reglu_kernels, gate, up, row_scale,
                       {.interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

Three reglu_backward(const Tensor& grad, const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved,
                     std::optional<double> limit, double offset, const OptionalTensor& row_scale, bool needs_scale) {
  if (!kernels_take(gate))
    return call<Three>("fastops::reglu_backward_reference", grad, gate, up, dim, interleaved, limit, offset, row_scale,
                       needs_scale);
  return gated_backward(kBackwardNames, reglu_backward_kernels, grad, gate, up, row_scale, needs_scale,
                        {.interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

FASTOPS_OP("reglu",
           "(Tensor gate, Tensor? up=None, int dim=-1, bool interleaved=False, float? limit=None, float offset=0.0, "
           "Tensor? row_scale=None) -> Tensor",
           reglu);
FASTOPS_OP("reglu_backward",
           "(Tensor grad, Tensor gate, Tensor? up, int dim, bool interleaved, float? limit, float offset, "
           "Tensor? row_scale, bool needs_scale) -> (Tensor, Tensor, Tensor)",
           reglu_backward);

}  // namespace ops
}  // namespace fastops
