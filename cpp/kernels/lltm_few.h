#pragma once
// Arguments of the CUDA kernels that are a whole step of the LLTM, products included, for few rows. All dense; weights is
// [3·state, state + features], the first `state` of a row for old_h.
#include "core/dtype.h"
#include "plan/lltm.h"

namespace fastops {

struct LltmFewInputs {
  DType dtype;
  int64_t batch, features, state;
  const void *input, *weights, *bias, *old_h, *old_cell;
};

struct LltmFew : LltmFewInputs {
  void *new_h, *new_cell;
  void* gates;  // [batch, 3·state] in what is computed in, bias included
};

struct LltmFewBackward : LltmFewInputs {
  const void *grad_h, *grad_cell;
  const void* gates;
  void *grad_input, *grad_weights, *grad_bias, *grad_old_h, *grad_old_cell;
};

using LltmFewCuda = int(const LltmFew&, void* stream);
using LltmFewBackwardCuda = int(const LltmFewBackward&, void* stream);

}  // namespace fastops
