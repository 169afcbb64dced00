#pragma once
// The gated linear units: swiglu, geglu, reglu and glu, of two tensors or of one that has both.
#include "host/pointwise.h"

namespace fastops {

struct GatedOptions {
  bool up_first = false;     // of glu: what is gated comes before the gate
  bool interleaved = false;  // one tensor has them by turns, else in halves
  int64_t dim = -1;          // along which one tensor has both
  std::optional<double> limit;
  double alpha = 1, offset = 0;
};

// What messages call the first tensor, or the one that has both, and the second.
struct GatedNames {
  const char *op, *first, *second;
};

Tensor gated_forward(const GatedNames& names, PointwiseKernels kernels, const Tensor& first,
                     const OptionalTensor& second, const OptionalTensor& row_scale, const GatedOptions& options);

// The gradients of first, second and row_scale; tensors without elements for what is not there or not asked for.
std::tuple<Tensor, Tensor, Tensor> gated_backward(const GatedNames& names, PointwiseKernels kernels, const Tensor& grad,
                                                  const Tensor& first, const OptionalTensor& second,
                                                  const OptionalTensor& row_scale, bool needs_scale,
                                                  const GatedOptions& options);

}  // namespace fastops
