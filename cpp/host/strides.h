#pragma once
// The strides that an elementwise op gives its results. Plain numbers, no tensors.
#include "core/tensor.h"

namespace fastops {

// A tensor's shape and strides.
struct View {
  Shape sizes, strides;
};

// Strides of the dense result of shape `sizes` of an elementwise op of `inputs`, which broadcast to it: those that torch's
// TensorIterator gives, so that real, fake and torch's own results agree.
void elementwise_strides(const View* inputs, size_t count, Shape sizes, int64_t* strides);

}  // namespace fastops
