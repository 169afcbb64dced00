#pragma once
// aten's operators by our kernels, with aten's signatures and statistics in aten's layout: a forward of ours may meet a backward
// of aten's, and the reverse. A call that our kernels do not take goes to the kernel that was there before.
#include "core/torch_edge.h"

namespace fastops::aten {

using Sizes = std::vector<int64_t>;
using Mask = std::vector<bool>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Triple native_layer_norm(const Tensor& input, const Sizes& normalized_shape, OptionalTensor weight, OptionalTensor bias,
                         double eps);
Triple native_layer_norm_backward(const Tensor& grad, const Tensor& input, const Sizes& normalized_shape,
                                  const Tensor& mean, const Tensor& rstd, OptionalTensor weight, OptionalTensor bias,
                                  const Mask& output_mask);
Pair fused_rms_norm(const Tensor& input, const Sizes& normalized_shape, OptionalTensor weight,
                    std::optional<double> eps);
Pair fused_rms_norm_backward(const Tensor& grad, const Tensor& input, const Sizes& normalized_shape, const Tensor& rstd,
                             OptionalTensor weight, const Mask& output_mask);
Tensor softmax(const Tensor& input, int64_t dim, bool half_to_float);
Tensor softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_dtype);
Tensor log_softmax(const Tensor& input, int64_t dim, bool half_to_float);
Tensor log_softmax_backward(const Tensor& grad, const Tensor& output, int64_t dim, ScalarType input_dtype);

}  // namespace fastops::aten
