#pragma once
// What aten's norms share.
#include "aten/kernels.h"
#include "core/norm_edge.h"

namespace fastops::aten {

// aten's derivative formulas hand a parameter that is not there over as a tensor that is none.
void drop_undefined(OptionalTensor& parameter);

// Whether the kernels for rows of one dtype take these as aten would.
bool supports(const Tensor& input, const Sizes& normalized_shape, const OptionalTensor& weight,
              const OptionalTensor& bias);

// The leading dimensions, and 1 for each that is normalised over.
std::vector<int64_t> statistics_shape(const Tensor& input, size_t dims);

// The same data under another dense shape.
Tensor reshaped(const Tensor& dense, const std::vector<int64_t>& shape);

// A gradient, or aten's tensor that is none.
Tensor or_undefined(bool needed, Tensor tensor);

}  // namespace fastops::aten
