#pragma once
// Arguments of the kernels around linear's GEMM, CPU and CUDA. [rows, n], dense.
#include "core/dtype.h"

namespace fastops {

enum class Activation : int { none, relu, sigmoid, gelu, silu };

struct LinearEpilogue {
  DType dtype, parameter;  // parameter: bias
  Activation activation;
  int64_t rows, n;
  const void* input;  // the GEMM's result
  const void* bias;   // null: 0, or in input already
  void* output;
};

struct LinearEpilogueBackward {
  DType dtype, parameter;
  Activation activation;
  int64_t rows, n;
  const void* grad;
  const void* saved;  // relu, sigmoid: the output; gelu, silu: the GEMM's result; none: not read
  const void* bias;   // null: 0, or in saved already
  void* grad_input;
  void* grad_bias;  // null: not asked for
  void* partial;    // [chunks, n] sums for grad_bias; null: not asked for, or, on CUDA, chunks is 1
  int64_t chunks;
};

using LinearEpilogueCpu = void(const LinearEpilogue&, int64_t row_begin, int64_t row_end);
using LinearEpilogueBackwardCpu = void(const LinearEpilogueBackward&, int64_t chunk_begin, int64_t chunk_end);
using LinearEpilogueCuda = int(const LinearEpilogue&, void* stream);
using LinearEpilogueBackwardCuda = int(const LinearEpilogueBackward&, void* stream);
using LinearEpilogueChunksCuda = int64_t(const LinearEpilogueBackward&);

}  // namespace fastops
