#pragma once
// Arguments of the layer norm kernels, CPU and CUDA. Rows of n elements, contiguous within a row.
#include "core/dtype.h"

namespace fastops {

struct LayerNormForward {
  DType dtype;      // input, output
  DType parameter;  // weight, bias
  int64_t rows, n;
  const void* input;
  int64_t input_stride;  // elements from row to row
  const void* weight;    // null: 1
  const void* bias;      // null: 0
  void* output;          // rows·n, dense
  void* mean;            // [rows] f32, or f64 for f64
  void* rstd;
  double eps;
};

struct LayerNormBackward {
  DType dtype, parameter;
  int64_t rows, n;
  const void* grad;
  int64_t grad_stride;
  const void* input;
  int64_t input_stride;
  const void* mean;
  const void* rstd;
  const void* weight;  // null: 1
  void* grad_input;    // null: not asked for
  void* partial;       // [chunks, 2, n] sums for weight and bias, then [scratch]; null: neither asked for
  int64_t chunks, scratch;
};

using LayerNormForwardCpu = void(const LayerNormForward&, int64_t row_begin, int64_t row_end);
using LayerNormBackwardCpu = void(const LayerNormBackward&, int64_t chunk_begin, int64_t chunk_end);
using LayerNormForwardCuda = int(const LayerNormForward&, void* stream);
using LayerNormBackwardCuda = int(const LayerNormBackward&, void* stream);
// Sets how many chunks of rows the CUDA backward makes on the current device, and the scratch it needs.
using LayerNormPlanCuda = void(LayerNormBackward&);

}  // namespace fastops
