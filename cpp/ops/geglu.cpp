// geglu: the gate times the normal distribution function of it, times up
#include "host/gated.h"

namespace fastops {

FASTOPS_POINTWISE(geglu);
FASTOPS_POINTWISE(geglu_backward);
FASTOPS_POINTWISE(geglu_tanh);
FASTOPS_POINTWISE(geglu_tanh_backward);

namespace ops {

using Three = std::tuple<Tensor, Tensor, Tensor>;
static constexpr GatedNames kNames{"geglu", "gate", "up"}, kBackwardNames{"geglu_backward", "gate", "up"};

static bool by_tanh(const char* op, const std::string& approximate) {
  FASTOPS_CHECK(approximate == "none" || approximate == "tanh", op, "approximate must be 'none' or 'tanh', got '",
                approximate, "'");
  return approximate == "tanh";
}

Tensor geglu(const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved, std::optional<double> limit,
             double offset, const OptionalTensor& row_scale, const std::string& approximate) {
  if (!kernels_take(gate))
    return call<Tensor>("fastops::geglu_reference", gate, up, dim, interleaved, limit, offset, row_scale, approximate);
  return gated_forward(kNames, by_tanh("geglu", approximate) ? geglu_tanh_kernels : geglu_kernels, gate, up, row_scale,
                       {.interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

Three geglu_backward(const Tensor& grad, const Tensor& gate, const OptionalTensor& up, int64_t dim, bool interleaved,
                     std::optional<double> limit, double offset, const OptionalTensor& row_scale,
                     const std::string& approximate, bool needs_scale) {
  if (!kernels_take(gate))
    return call<Three>("fastops::geglu_backward_reference", grad, gate, up, dim, interleaved, limit, offset, row_scale,
                       approximate, needs_scale);
  return gated_backward(kBackwardNames,
                        by_tanh("geglu_backward", approximate) ? geglu_tanh_backward_kernels : geglu_backward_kernels,
                        grad, gate, up, row_scale, needs_scale,
                        {.interleaved = interleaved, .dim = dim, .limit = limit, .offset = offset});
}

FASTOPS_OP("geglu",
           "(Tensor gate, Tensor? up=None, int dim=-1, bool interleaved=False, float? limit=None, float offset=0.0, "
           "Tensor? row_scale=None, str approximate='none') -> Tensor",
           geglu);
FASTOPS_OP("geglu_backward",
           "(Tensor grad, Tensor gate, Tensor? up, int dim, bool interleaved, float? limit, float offset, "
           "Tensor? row_scale, str approximate, bool needs_scale) -> (Tensor, Tensor, Tensor)",
           geglu_backward);

}  // namespace ops
}  // namespace fastops
