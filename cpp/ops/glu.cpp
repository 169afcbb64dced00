// glu: the gate's sigmoid, times the input
#include "host/gated.h"

namespace fastops {

FASTOPS_POINTWISE(glu);
FASTOPS_POINTWISE(glu_backward);

namespace ops {

using Three = std::tuple<Tensor, Tensor, Tensor>;
static constexpr GatedNames kNames{"glu", "input", "gate"}, kBackwardNames{"glu_backward", "input", "gate"};

Tensor glu(const Tensor& input, const OptionalTensor& gate, int64_t dim, bool interleaved, std::optional<double> limit,
           double offset, const OptionalTensor& row_scale) {
  if (!kernels_take(input))
    return call<Tensor>("fastops::glu_reference", input, gate, dim, interleaved, limit, offset, row_scale);
  return gated_forward(kNames, glu_kernels, input, gate, row_scale,
                       {.up_first = true, .interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

Three glu_backward(const Tensor& grad, const Tensor& input, const OptionalTensor& gate, int64_t dim, bool interleaved,
                   std::optional<double> limit, double offset, const OptionalTensor& row_scale, bool needs_scale) {
  if (!kernels_take(input))
    return call<Three>("fastops::glu_backward_reference", grad, input, gate, dim, interleaved, limit, offset, row_scale,
                       needs_scale);
  return gated_backward(kBackwardNames, glu_backward_kernels, grad, input, gate, row_scale, needs_scale,
                        {.up_first = true, .interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

FASTOPS_OP("glu",
           "(Tensor input, Tensor? gate=None, int dim=-1, bool interleaved=False, float? limit=None, float offset=0.0, "
           "Tensor? row_scale=None) -> Tensor",
           glu);
FASTOPS_OP("glu_backward",
           "(Tensor grad, Tensor input, Tensor? gate, int dim, bool interleaved, float? limit, float offset, "
           "Tensor? row_scale, bool needs_scale) -> (Tensor, Tensor, Tensor)",
           glu_backward);

}  // namespace ops
}  // namespace fastops
