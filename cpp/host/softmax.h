#pragma once
// What softmax and log_softmax share.
#include "core/torch_edge.h"

namespace fastops {

Tensor softmax_forward(const char* op, bool log, const Tensor& input, int64_t dim, double scale,
                       std::optional<ScalarType> dtype);
Tensor softmax_backward(const char* op, bool log, const Tensor& grad, const Tensor& output, int64_t dim, double scale,
                        std::optional<ScalarType> dtype);

}  // namespace fastops
