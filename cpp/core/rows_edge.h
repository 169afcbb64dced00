#pragma once
// The Torch edge that row-wise ops share: tensors seen as rows, affine parameters, the sums for their gradients.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/torch_edge.h"
#include "kernels/columns.h"

namespace fastops {

// A tensor seen as rows of contiguous elements at one distance from each other.
struct Rows {
  OptionalTensor copy;  // contiguous, where the tensor's own strides do not allow this view
  const void* pointer = nullptr;
  int64_t count = 0, n = 0, stride = 0;
  const void* data() const { return pointer; }
};

// The trailing `dims` dimensions make up a row.
Rows as_rows(const Tensor& tensor, int64_t dims);

// The CUDA kernels divide a row of n elements into words of 16 bytes, of 8 for halves, or single elements, as n allows, and
// take rows that start at one.
// What does not is copied: then the words, and with them a result's bits, depend on n alone.
Rows as_aligned_rows(const Tensor& tensor, int64_t dims);
Tensor as_aligned(Tensor tensor);
inline bool starts_at(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }
// A contiguous copy, also of a tensor that is contiguous.
Tensor copy_of(const Tensor& tensor);

// An affine parameter: input's device, input's dtype or float32.
void check_parameter(const char* op, const char* name, const Tensor& parameter, Shape shape, const Tensor& input);

// The kernels take weight and bias of one dtype; where one is f32 and the other is not, both become f32.
DType parameter_dtype(const Tensor& input, OptionalTensor& weight, OptionalTensor& bias);

// Runs up to two column sums, writing the parameters' gradients; on the CPU without a launch.
void sum_columns(const std::optional<cuda::Launch>& launch, const ColumnSum* sums, int count);

// Memory for the time of an op: a tensor on CUDA, where torch's allocator knows the stream; without one on the CPU.
class Scratch {
 public:
  void* allocate(const Tensor& device_of, DType dtype, int64_t count);

 private:
  OptionalTensor tensor_;
  std::unique_ptr<std::byte[]> bytes_;
};

// A backward whose grad_bias, of `width` columns, is a sum over rows: the kernels leave partial sums of chunks of rows, which are
// then added. On CUDA a single chunk's are the gradient itself. The arguments have rows, chunks, partial and grad_bias (null: not
// asked for).
template <class Args>
void run_with_bias_sum(const char* op, const Tensor& device_of, Args& a, int64_t width, DType bias_dtype,
                       int64_t bytes_a_row, void (*const* cpu)(const Args&, int64_t, int64_t),
                       int (*const* cuda)(const Args&, void*), int64_t (*const* cuda_chunks)(const Args&)) {
  const DType stat = accumulate_type(a.dtype);
  std::optional<cuda::Launch> launch;
  if (device_of.is_cuda()) launch.emplace(op, device_of.get_device_index());
  a.chunks = launch ? cuda_chunks[launch->group()](a) : plan::cpu::chunks(a.rows, bytes_a_row);
  Scratch scratch;
  a.partial = a.grad_bias && (!launch || a.chunks > 1) ? scratch.allocate(device_of, stat, a.chunks * width) : nullptr;
  if (launch) {
    launch->check(cuda[launch->group()](a, launch->stream()));
  } else {
    const int64_t rows_each = (a.rows + a.chunks - 1) / a.chunks;
    run_on_threads(a.chunks, rows_each * bytes_a_row,
                   [&, kernel = cpu[isa()]](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  if (!a.partial) return;
  const ColumnSum columns{stat, bias_dtype, a.partial, a.chunks, width, width, a.grad_bias};
  sum_columns(launch, &columns, 1);
}

inline const void* data_or_null(const OptionalTensor& tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }
inline const void* data_or_null(const Tensor* tensor) { return tensor ? tensor->const_data_ptr() : nullptr; }
inline void* writable_or_null(const OptionalTensor& tensor) { return tensor ? tensor->mutable_data_ptr() : nullptr; }

}  // namespace fastops
