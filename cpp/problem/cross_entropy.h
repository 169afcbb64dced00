#pragma once
// What cross_entropy and log_prob are asked to do. Of a row of logits z, with u = scale·z, or softcap·tanh(scale·z / softcap),
// and the target y:
//
//   lse      = log Σ e^u
//   log_prob = u[y] - lse,   entropy = lse - Σ p·u,   p = e^(u - lse)
//   loss     = (1 - smoothing)·w[y]·(lse - u[y]) + smoothing / n·(lse·Σw - Σ w·u) + z_loss·lse²
//
// Rows whose target is ignore_index do not count, and long ones are not read: all their numbers are 0, and their gradients. Of a target
// that is no class loss and gradients are NaN; of the forward on the CPU the host checks targets.
#include "problem/row.h"

namespace fastops {

// A number for each row, of any of our dtypes; stride 0: one for all. Null: not there.
struct RowNumbers {
  void* data;
  DType dtype;
  int64_t stride;
};

enum class Likelihood { cross_entropy, log_prob };

struct LikelihoodRows {
  Likelihood of;
  DType dtype;  // of the logits
  int64_t rows, n;
  RowsView logits;
  const int64_t* target;
  int64_t ignore_index;
  double scale, softcap;  // softcap 0: none
  // cross_entropy:
  double smoothing, z_loss;
  const void* weight;      // [n], of the type that is computed in; null: 1
  const void* weight_sum;  // of all of them, one number; null: n
};

struct LikelihoodForward : LikelihoodRows {
  // Of the type that is computed in, but for a loss that is not reduced, which has the result's.
  RowNumbers result;  // loss or log_prob
  RowNumbers lse;
  RowNumbers row_weight;  // cross_entropy: w[y]; null: not asked for
  RowNumbers entropy;     // log_prob: null: not asked for
};

struct LikelihoodBackward : LikelihoodRows {
  RowNumbers lse;
  RowNumbers grad;                   // of the loss or log_prob; null: 0
  RowNumbers divisor;                // of grad; null: 1
  RowNumbers grad_lse;               // cross_entropy; null: 0
  RowNumbers entropy, grad_entropy;  // log_prob; null: 0
  void* grad_input;                  // rows·n, dense, of the logits' dtype
};

// The sum of all rows' losses; with a `total` the mean: that divided by the weights' sum, which total is set to. In one order of the
// rows, whatever runs beside it.
struct RowTotal {
  RowNumbers losses, weights;  // of one dtype, that which is computed in
  int64_t rows;
  void* result;
  DType result_dtype;
  void* total;  // of the losses' dtype; null: the sum
};

using LikelihoodForwardCuda = int(const LikelihoodForward&, void* stream);
using LikelihoodBackwardCuda = int(const LikelihoodBackward&, void* stream);
using RowTotalCpu = void(const RowTotal&);
using RowTotalCuda = int(const RowTotal&, void* stream);

}  // namespace fastops
