#pragma once
// Arguments of the kernels around linear's GEMM, CPU and CUDA. [rows, n], dense.
#include "core/dtype.h"

namespace fastops {

// gelu: u·Phi(u); gelu_tanh: u·sigmoid(2z), which is u·(1 + tanh(z)) / 2, with z = sqrt(2 / pi)·(u + 0.044715·u³).
enum class Activation : int { none, relu, sigmoid, gelu, gelu_tanh, silu };
constexpr const char* kActivations[] = {"none", "relu", "sigmoid", "gelu", "gelu_tanh", "silu"};
// Whether the derivative is computed from the activation's input u = x + bias; of the others, from its output.
template <Activation a>
constexpr bool kFromInput = a >= Activation::gelu;

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
  const void* saved;  // relu, sigmoid: the output; the others: the GEMM's result; none: not read
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
