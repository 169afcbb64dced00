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
//
// The logits may be a part of all classes: a shard of the vocabulary, or a slice that is in memory for a moment. What a forward finds of
// a part are kPartNumbers of each row; likelihood_merge makes a row's results of all parts' numbers, in their order. The gradient of
// a part's logits is that of the whole, because lse is all that it needs of the others.
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
  int64_t first_class, classes;  // the logits are those of classes [first_class, first_class + n) of so many
  RowsView logits;
  const int64_t* target;
  int64_t ignore_index;
  double scale, softcap;  // softcap 0: none
  // cross_entropy:
  double smoothing, z_loss;
  const void* weight;      // [classes], of the type that is computed in; null: 1
  const void* weight_sum;  // of all of them, one number; null: their count
};

// Of a part of a row, in the type that is computed in: the largest u, or z with scale's sign where there is no softcap; the sum of
// e^(u - largest); the target's u or z, 0 in the parts that do not have it; and Σ w·u, or the sum of e^(u - largest)·(u - largest).
constexpr int kPartNumbers = 4;

struct LikelihoodForward : LikelihoodRows {
  // Of the type that is computed in, but for a loss that is not reduced, which has the result's.
  RowNumbers result = {};  // loss or log_prob
  RowNumbers lse = {};
  RowNumbers row_weight = {};  // cross_entropy: w[y]; null: not asked for
  RowNumbers entropy = {};     // log_prob: null: not asked for
  void* parts = nullptr;       // [rows, kPartNumbers], in place of all these; null: the logits are whole
  bool needs_entropy = false;
};

// From parts to what the forward writes: to results, or to one part of the same classes. Of the logits only their dtype is used, for one
// part no target either.
struct LikelihoodMerge : LikelihoodForward {
  const void* found = nullptr;  // [count, rows, kPartNumbers]
  int64_t count = 0;
};

struct LikelihoodBackward : LikelihoodRows {
  RowNumbers lse = {};
  RowNumbers grad = {};                        // of the loss or log_prob; null: 0
  RowNumbers divisor = {};                     // of grad; null: 1
  RowNumbers grad_lse = {};                    // cross_entropy; null: 0
  RowNumbers entropy = {}, grad_entropy = {};  // log_prob; null: 0
  void* grad_input = nullptr;                  // rows of n, of the logits' dtype; or the logits' own
  int64_t grad_input_stride = 0;               // of rows; on the CPU n
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
using LikelihoodMergeCpu = void(const LikelihoodMerge&, int64_t row_begin, int64_t row_end);
using LikelihoodMergeCuda = int(const LikelihoodMerge&, void* stream);
using RowTotalCpu = void(const RowTotal&);
using RowTotalCuda = int(const RowTotal&, void* stream);

}  // namespace fastops
