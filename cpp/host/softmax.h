#pragma once
// What softmax and log_softmax share.
#include "core/torch_edge.h"

namespace fastops {

// Whether our kernels take the tensor and a result of this dtype, the tensor's if there is none.
bool softmax_takes(const Tensor& tensor, std::optional<ScalarType> dtype);

Tensor softmax_forward(const char* op, bool log, const Tensor& input, int64_t dim, double scale,
                       std::optional<ScalarType> dtype);
Tensor softmax_backward(const char* op, bool log, const Tensor& grad, const Tensor& output, int64_t dim, double scale,
                        std::optional<ScalarType> dtype);

}  // namespace fastops
