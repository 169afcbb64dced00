#pragma once
// Arguments of the kernels of lltm's cell, CPU and CUDA. [rows, n] and, of the gates, [rows, 3·n], dense.
#include "core/dtype.h"

namespace fastops {

struct LltmCell {
  DType dtype;
  int64_t rows, n;
  const void *gates, *bias;  // bias: [3·n]
  const void* old_cell;
  void *new_h, *new_cell;
};

struct LltmCellBackward {
  DType dtype;
  int64_t rows, n;
  const void *grad_h, *grad_cell;
  const void *gates, *bias;
  const void* old_cell;
  void *grad_gates, *grad_old_cell;
  void* grad_bias;  // null: not asked for
  void* partial;    // [chunks, 3·n] sums for grad_bias; null: not asked for, or, on CUDA, chunks is 1
  int64_t chunks;
};

using LltmCellCpu = void(const LltmCell&, int64_t row_begin, int64_t row_end);
using LltmCellBackwardCpu = void(const LltmCellBackward&, int64_t chunk_begin, int64_t chunk_end);
using LltmCellCuda = int(const LltmCell&, void* stream);
using LltmCellBackwardCuda = int(const LltmCellBackward&, void* stream);
using LltmCellChunksCuda = int64_t(const LltmCellBackward&);

}  // namespace fastops
