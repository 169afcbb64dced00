#pragma once
// The Torch edge that all elementwise ops share: broadcasting, merging of dimensions, the choice of kernel.
#include <functional>
#include <initializer_list>

#include "core/torch_edge.h"
#include "problem/pointwise.h"

namespace fastops {

struct PointwiseKernels {
  PointwiseCpuKernel* const* cpu;
  PointwiseCudaKernel* const* cuda;
};

#define FASTOPS_POINTWISE(kernel)                   \
  FASTOPS_CPU_KERNEL(kernel, PointwiseCpuKernel);   \
  FASTOPS_CUDA_KERNEL(kernel, PointwiseCudaKernel); \
  constexpr PointwiseKernels kernel##_kernels { kernel##_cpu, kernel##_cuda }

using Tensors = std::initializer_list<std::reference_wrapper<const Tensor>>;  // copies would count references

// A tensor's memory, or memory that no tensor describes.
struct Operand {
  void* data;
  Shape sizes, strides;
};

using Scalars = std::array<double, kMaxScalars>;

// Inputs broadcast to the outputs' shape (the caller has checked that they can); all of one dtype and device. The first
// output is dense.
void run_pointwise(const char* op, PointwiseKernels kernels, Tensors outputs, Tensors inputs, Scalars scalars = {});
// Of memory of one dtype, outputs first, of at most kMaxDims dimensions.
void run_pointwise(const char* op, PointwiseKernels kernels, const Tensor& device_of, DType dtype,
                   const Operand* operands, int count, Scalars scalars);
// A problem that is described already.
void run_pointwise(const char* op, PointwiseKernels kernels, const Tensor& device_of, DType dtype, const Pointwise& p);

// Uninitialised, for the result of an elementwise op of these inputs, which broadcast to `sizes`; the first one's dtype.
Tensor allocate_elementwise(Tensors inputs, Shape sizes);

// Orders the dimensions by the first operand's strides, fastest first, and merges neighbours that every operand walks as
// one; the others broadcast to the first. How many remain, or -1 for more than kMaxDims.
int merge_dims(const Operand* operands, int count, int64_t* sizes, int64_t (*strides)[kMaxDims]);

// y = f(input), in the layout that torch's elementwise ops give it.
Tensor unary(const char* op, PointwiseKernels kernels, const Tensor& input);
// grad_input = f(grad, saved) in saved's layout; grad has saved's shape and dtype, any strides.
Tensor unary_backward(const char* op, PointwiseKernels kernels, const Tensor& grad, const char* saved_name,
                      const Tensor& saved);

// The shape that two shapes broadcast to.
std::vector<int64_t> broadcast(const char* op, const char* a_name, Shape a, const char* b_name, Shape b);

}  // namespace fastops
