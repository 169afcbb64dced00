#pragma once
// What cross_entropy and log_prob share: problem/cross_entropy.h on tensors.
#include <optional>
#include <tuple>

#include "core/torch_edge.h"

namespace fastops {

// What makes u of logits, and losses of u.
struct LikelihoodOptions {
  int64_t ignore_index;
  double scale;
  std::optional<double> softcap;
  double label_smoothing = 0, z_loss = 0;
};

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

// loss, lse, and what the mean divides by. Classes are dimension 1, or 0 where that is the only one.
ThreeTensors cross_entropy_forward(const char* op, const Tensor& input, const Tensor& target,
                                   const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                   std::optional<ScalarType> dtype);
Tensor cross_entropy_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_lse, const Tensor& input,
                              const Tensor& target, const Tensor& lse, const Tensor& total,
                              const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options);

// log_prob, entropy, lse. Classes are the last dimension.
ThreeTensors log_prob_forward(const char* op, const Tensor& input, const Tensor& target,
                              const LikelihoodOptions& options, bool entropy);
Tensor log_prob_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                         const Tensor& target, const Tensor& lse, const Tensor& entropy,
                         const LikelihoodOptions& options);

}  // namespace fastops
