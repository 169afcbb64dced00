#pragma once
// What the operators that reduce rows are asked to do, on the CPU and on CUDA: plain numbers and pointers.
#include "core/dtype.h"
#include "problem/pass.h"

namespace fastops {

// The rows of a tensor, contiguous within a row. Row r begins at element (r / inner)·outer_stride + (r % inner)·inner_stride,
// so that a slice such as logits[:, :-1] needs no copy. Any alignment; a stride may be 0.
struct RowsView {
  const void* data;
  int64_t inner, inner_stride, outer_stride;
};

// y = softmax(scale·x), or its logarithm.
struct Softmax {
  bool log;
  DType dtype;   // of x
  DType result;  // of y: x's, or f32 of a half type
  int64_t rows, n;
  RowsView input;
  double scale;
  void* output;  // rows·n, dense
};

// The gradient of x: scale·y·(g - Σ g·y); of the logarithm scale·(g - e^y·Σ g).
struct SoftmaxBackward {
  bool log;
  DType dtype;   // of g and y
  DType result;  // of the gradient: that, or a half type beside f32
  int64_t rows, n;
  RowsView grad, output;
  double scale;
  void* grad_input;  // rows·n, dense
};

// Few long rows on the CPU, their segments shared out: segment s of row r is task r·segments + s. A first pass over all
// tasks writes `found`, [rows, segments, kRowFound]; the second reads it. Bits as without passes.
constexpr int64_t kRowFound = 4;
template <class Problem>
using RowsCpu = void(const Problem&, int64_t row_begin, int64_t row_end);
template <class Problem>
using RowSegmentsCpu = void(const Problem&, Pass, double* found, int64_t task_begin, int64_t task_end);

using SoftmaxCuda = int(const Softmax&, void* stream);
using SoftmaxBackwardCuda = int(const SoftmaxBackward&, void* stream);

}  // namespace fastops
