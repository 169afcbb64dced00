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
  // The logits are those of some classes: from this one on, of so many. Nothing: they are all.
  int64_t first_class = 0;
  std::optional<int64_t> classes = std::nullopt;
};

using ThreeTensors = std::tuple<Tensor, Tensor, Tensor>;

// The gradients go to `out`, which may be the input's memory, or to a new tensor.
//
// loss, lse, and what the mean divides by. Classes are dimension 1, or 0 where that is the only one.
ThreeTensors cross_entropy_forward(const char* op, const Tensor& input, const Tensor& target,
                                   const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                   std::optional<ScalarType> dtype);
Tensor cross_entropy_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_lse, const Tensor& input,
                              const Tensor& target, const Tensor& lse, const Tensor& total,
                              const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                              const OptionalTensor& out = std::nullopt);

// log_prob, entropy, lse. Classes are the last dimension.
ThreeTensors log_prob_forward(const char* op, const Tensor& input, const Tensor& target,
                              const LikelihoodOptions& options, bool entropy);
Tensor log_prob_backward(const char* op, const Tensor& grad, const OptionalTensor& grad_entropy, const Tensor& input,
                         const Tensor& target, const Tensor& lse, const Tensor& entropy,
                         const LikelihoodOptions& options, const OptionalTensor& out = std::nullopt);

// Of logits of some classes, along a dimension: what problem/cross_entropy.h calls a part, [*, kPartNumbers]. Targets are not checked.
Tensor likelihood_partial(const char* op, const Tensor& input, const Tensor& target, int64_t dim,
                          const OptionalTensor& weight, const LikelihoodOptions& options, bool entropy);
// One part of several, [count, *, kPartNumbers].
Tensor likelihood_join(const char* op, const Tensor& parts, const LikelihoodOptions& options, bool entropy);
// The results of the forwards above, of parts.
ThreeTensors cross_entropy_merge(const char* op, const Tensor& parts, const Tensor& target,
                                 const OptionalTensor& weight, int64_t reduction, const LikelihoodOptions& options,
                                 std::optional<ScalarType> dtype);
ThreeTensors log_prob_merge(const char* op, const Tensor& parts, const Tensor& target, const LikelihoodOptions& options,
                            bool entropy);

}  // namespace fastops
