#pragma once
// The Torch edge of the norms: checks, allocation, launch and the sums for the parameters. What a norm is made of is in
// kernels/norm.h; an op's own file has its schema and which of these it takes.
#include "core/rows_edge.h"
#include "kernels/norm.h"

namespace fastops {

// A layer norm's statistics as aten has them: two tensors of a number a row, in the type that is computed in. There may be a
// shift where they are read.
struct AtenStatistics {
  int64_t dims;  // trailing ones that are normalised over
  Tensor mean, rstd;
  OptionalTensor shift;
  NormStatistics pointers() const;
};

struct NormOutputs {
  Tensor output;
  OptionalTensor sum;         // with a residual
  OptionalTensor statistics;  // where they are asked for
};

struct NormGradients {
  Tensor input, weight;  // empty where not asked for
  OptionalTensor bias;   // of a layer norm
};

struct NormForwardCall {
  const char* op;
  Norm norm;
  const Tensor& input;
  const Tensor* residual;  // null: none
  OptionalTensor weight, bias;
  int64_t dims;  // trailing ones that are normalised over
  double eps, weight_offset;
  bool statistics;
  const AtenStatistics* aten_statistics = nullptr;  // these are written in place of statistics of ours
};
NormOutputs norm_forward(NormForwardCall call);

struct NormBackwardCall {
  const char *op, *forward_op;
  Norm norm;
  const Tensor& grad;
  const Tensor* grad_sum;  // null: none
  const char* input_name;
  const Tensor& input;       // what was normalised
  const Tensor* statistics;  // the forward's; null: aten's
  OptionalTensor weight, bias;
  double weight_offset;
  bool need_input, need_weight, need_bias;
  const AtenStatistics* aten_statistics = nullptr;
};
NormGradients norm_backward(NormBackwardCall call);

// What torch's rms_norm adds where no eps is given: the step at 1 of the type that it computes in, by what is normalised.
double rms_eps(std::optional<double> eps, const Tensor& normalized);

inline const Tensor* tensor_or_null(const OptionalTensor& tensor) { return tensor ? &*tensor : nullptr; }

}  // namespace fastops
