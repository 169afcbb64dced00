#pragma once
// The arguments of an elementwise kernel, shared by the CPU and CUDA kernels. Plain data, no Torch.
#include <cstdint>

#include "core/dtype.h"

namespace fastops {

constexpr int kMaxDims = 16;     // after merging; tensors with more go through contiguous copies
constexpr int kMaxOperands = 5;  // outputs, then inputs
constexpr int kMaxScalars = 3;
constexpr int64_t kMostOfRow = 1 << 30;  // numbers, where a CUDA kernel counts those of a row in 32 bits

struct Pointwise {
  int operands;
  int ndim;  // 0 for a single element
  int64_t numel;
  // Dimension 0 varies fastest. A layout that is one contiguous run for every operand has ndim 1 and strides 1.
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxOperands][kMaxDims];  // in elements; 0 where an input is broadcast
  void* data[kMaxOperands];                 // outputs first; inputs are only read
  double scalars[kMaxScalars];
  // A number of each row, of the type that is computed in, where f takes one or sums over a row. Then dimension 0 is the rows',
  // with unit strides, and dimension 1 counts the rows. Null: 1, and no sum.
  const void* row_scale = nullptr;
  void* row_sums = nullptr;

  // Inlined wherever it is used: a copy compiled for AVX-512 must not be the one that others call.
  __attribute__((always_inline)) bool is_contiguous() const {
    if (ndim > 1 || row_scale || row_sums) return false;
    for (int k = 0; ndim == 1 && k < operands; ++k)
      if (strides[k][0] != 1) return false;
    return true;
  }
};

// CPU: elements [begin, end) of the merged index space, or rows if these have numbers. CUDA: all of them, on a stream; returns a
// cudaError_t.
using PointwiseCpuKernel = void(DType, const Pointwise&, int64_t begin, int64_t end);
using PointwiseCudaKernel = int(DType, const Pointwise&, void* stream);

}  // namespace fastops
