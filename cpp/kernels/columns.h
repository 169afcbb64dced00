#pragma once
// Column sums of a row-wise backward: each chunk of rows leaves one partial row, and a fixed-order sum of those rows gives
// the parameter's gradient. The number of chunks depends on the sizes alone, so two runs give the same bits.
#include "core/dtype.h"

namespace fastops {

struct ColumnSum {
  DType accumulate;     // type of the partial rows: f32, or f64
  DType dtype;          // type of the result
  const void* partial;  // [chunks, stride], the first n of each row
  int64_t chunks, stride, n;
  void* result;  // [n]
};

using ColumnSumCpuKernel = void(const ColumnSum&, int64_t begin, int64_t end);    // columns [begin, end)
using ColumnSumCudaKernel = int(const ColumnSum* sums, int count, void* stream);  // up to two, one launch

}  // namespace fastops
