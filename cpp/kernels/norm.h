#pragma once
// Arguments of the norm kernels, CPU and CUDA. Rows of n elements, contiguous within a row.
//
//   layer: y = (x - mean)·rstd·(weight + weight_offset) + bias,   rstd = 1 / sqrt(mean of (x - mean)² + eps)
//   rms:   y = x·rstd·(weight + weight_offset),                   rstd = 1 / sqrt(mean of x² + eps)
// Without a weight there is no factor.
//
// x is the input, or input + residual rounded to the dtype. A layer norm keeps its mean as two numbers, `mean` as rounded and
// `shift`, what rounding took from it: x - mean is exact where x lies near the mean, and small elements keep their digits
// beside a large one. With mean any number near the row's mean and d = x - mean, shift = mean of d, and the variance is
// mean of d² - shift²: nothing cancels where shift is small beside the standard deviation. The CUDA kernels of halves take 0
// for that number up to four deviations from it, which their digits have room for (cuda/norm.cu).
#include "core/dtype.h"
#include "problem/row.h"

namespace fastops {

enum class Norm { layer, rms };

// Where the statistics are, f32 or of f64 f64: those of row r at r·step. An rms norm has rstd alone. Ours are one tensor,
// [rows, 3] or [rows]; aten's are two and have no shift: theirs is the mean with it, and 0 where it is read.
struct NormStatistics {
  void *mean = nullptr, *shift = nullptr, *rstd = nullptr;
  int64_t step = 1;

  static constexpr int64_t numbers_of(Norm norm) { return norm == Norm::layer ? 3 : 1; }
  static NormStatistics of_rows(Norm norm, DType type, void* first) {
    if (norm == Norm::rms || !first) return {nullptr, nullptr, first, 1};
    char* at = static_cast<char*>(first);
    return {at, at + size_of(type), at + 2 * size_of(type), numbers_of(norm)};
  }
};

struct NormForward {
  Norm norm;
  DType dtype;      // input, residual, sum, output
  DType parameter;  // weight, bias
  int64_t rows, n;
  const void* input;
  int64_t input_stride;  // elements from row to row
  const void* residual;  // null: none
  int64_t residual_stride;
  const void* weight;  // null: 1
  const void* bias;    // null: 0
  double weight_offset, eps;
  void* output;               // rows·n, dense
  void* sum;                  // rows·n, dense: input + residual; null without a residual
  NormStatistics statistics;  // no rstd: not asked for
};

// How the parameters' gradients come together: from `partial`, by a column sum that follows; or by the norm's own kernels,
// of which one has all rows in one chunk, or other blocks read the few rows again by columns.
enum class Gather { partial, whole, columns };

struct NormBackward {
  Norm norm;
  DType dtype, parameter;
  int64_t rows, n;
  const void* grad;  // of the output
  int64_t grad_stride;
  const void* grad_sum;  // of the sum, added to grad_input; null: none
  int64_t grad_sum_stride;
  const void* input;  // what was normalised: the input or the sum
  int64_t input_stride;
  NormStatistics statistics;  // as the forward wrote them
  const void* weight;         // null: 1
  double weight_offset;
  void* grad_input;  // rows·n, dense; null: not asked for
  Gather gather;
  void* partial;  // [chunks, sums, n] for weight and, for layer, bias; null: neither asked for, or gathered otherwise
  int64_t chunks;
  void* parameter_grads[2];  // of weight and bias, [n]; null: not asked for
  DType parameter_grad_dtypes[2];
  int64_t sums() const { return norm == Norm::layer ? 2 : 1; }
  bool wants_parameters() const { return parameter_grads[0] || parameter_grads[1]; }
};

using NormForwardCpu = void(const NormForward&, int64_t row_begin, int64_t row_end);
using NormBackwardCpu = void(const NormBackward&, int64_t chunk_begin, int64_t chunk_end);
// Few long rows, their segments shared out: segment s of row r, backward of chunk r, is task r·segments + s. A first pass
// over all tasks writes `found`, [rows, segments, kRowFound]; the second reads it. Bits as without passes.
using NormForwardSegmentsCpu = void(const NormForward&, Pass, double* found, int64_t task_begin, int64_t task_end);
using NormBackwardSegmentsCpu = void(const NormBackward&, Pass, double* found, int64_t task_begin, int64_t task_end);
using NormForwardCuda = int(const NormForward&, void* stream);

}  // namespace fastops
