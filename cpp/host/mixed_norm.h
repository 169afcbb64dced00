#pragma once
// Norms of tensors whose dtypes differ: in a dtype that has room for all of them, by the kernels for one dtype.
#include "core/norm_edge.h"

namespace fastops {

// Whether the kernels take these dtypes: one for the rows, and that or float32 beside a half type for the parameters.
bool one_dtype(const NormForwardCall& c);
bool one_dtype(const NormBackwardCall& c);

// What the calls above do not take. The sum has the residual's dtype, the output the input's; what is normalised is the
// sum as rounded. The gradient of the rows has the promotion of grad and input, for autograd to round it for each.
NormOutputs mixed_norm_forward(NormForwardCall c);
NormGradients mixed_norm_backward(NormBackwardCall c);

}  // namespace fastops
