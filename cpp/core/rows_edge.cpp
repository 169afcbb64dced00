#include "core/rows_edge.h"

namespace fastops {

FASTOPS_CPU_KERNEL(column_sum, ColumnSumCpuKernel);
FASTOPS_CUDA_KERNEL(column_sum, ColumnSumCudaKernel);

Rows as_rows(const Tensor& tensor, int64_t dims) {
  Shape sizes = tensor.sizes(), strides = tensor.strides();
  const int64_t leading = tensor.dim() - dims;
  int64_t n = 1, count = 1, stride = -1;
  bool fits = true;
  for (int64_t d = tensor.dim(); d-- > leading;) {
    fits &= sizes[d] == 1 || strides[d] == n;
    n *= sizes[d];
  }
  for (int64_t d = leading; d-- > 0;) {
    if (sizes[d] != 1) {
      if (stride < 0)
        stride = strides[d];
      else
        fits &= strides[d] == stride * count;
    }
    count *= sizes[d];
  }
  if (!fits && n * count > 0) return {as_contiguous(tensor), count, n, n};
  return {tensor, count, n, stride < 0 ? n : stride};
}

static int64_t word_bytes(const Tensor& tensor, int64_t n) {
  const int64_t bytes = n * size_of(*dtype_of(tensor));
  return std::min<int64_t>(16, bytes & -bytes);
}

static Tensor copy_of(const Tensor& tensor) {
  Tensor copy = allocate(tensor.sizes(), tensor, *dtype_of(tensor));
  torch::stable::copy_(copy, tensor);
  return copy;
}

static bool starts_at(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }

Rows as_aligned_rows(const Tensor& tensor, int64_t dims) {
  Rows rows = as_rows(tensor, dims);
  const int64_t word = word_bytes(tensor, rows.n);
  if (rows.count == 0 || rows.n == 0 ||
      (starts_at(rows.data(), word) && (rows.count == 1 || rows.stride * size_of(*dtype_of(tensor)) % word == 0)))
    return rows;
  return {copy_of(tensor), rows.count, rows.n, rows.n};
}

Tensor as_aligned(const Tensor& tensor) {
  Tensor dense = as_contiguous(tensor);
  return starts_at(dense.const_data_ptr(), word_bytes(dense, std::max<int64_t>(1, dense.numel()))) ? dense
                                                                                                  : copy_of(dense);
}

void check_parameter(const char* op, const char* name, const Tensor& parameter, Shape shape, const Tensor& input) {
  check_same_device(op, name, parameter, "input", input);
  FASTOPS_CHECK(same_shape(parameter.sizes(), shape), op, name, " must have shape ", text_of(shape), ", got ",
                text_of(parameter.sizes()));
  const ScalarType own = input.scalar_type();
  const bool half = size_of(*dtype_of(input)) == 2;
  FASTOPS_CHECK(parameter.scalar_type() == own || (half && parameter.scalar_type() == ScalarType::Float), op, name,
                " must have input's dtype ", text_of(own), half ? " or torch.float32" : "", ", got ",
                text_of(parameter.scalar_type()));
}

DType parameter_dtype(const Tensor& input, OptionalTensor& weight, OptionalTensor& bias) {
  const DType own = *dtype_of(input);
  DType common = weight ? *dtype_of(*weight) : bias ? *dtype_of(*bias) : own;
  if (weight && bias && weight->scalar_type() != bias->scalar_type()) common = DType::f32;
  if (weight) weight = to_dtype(as_contiguous(*weight), common);
  if (bias) bias = to_dtype(as_contiguous(*bias), common);
  return common;
}

// As many rows in a chunk as there are chunks would round least; at least 64 rows for one partial row of traffic.
int64_t cpu_chunks(int64_t rows) {
  return rows < 4096 ? std::clamp<int64_t>(rows / 8, 1, 64) : std::min<int64_t>(rows / 64, 256);
}

void sum_columns(const char* op, const Tensor& device_of, const ColumnSum* sums, int count) {
  if (device_of.is_cuda()) {
    cuda::Launch launch(op, device_of.get_device_index());
    launch.check(column_sum_cuda[launch.group()](sums, count, launch.stream()));
    return;
  }
  ColumnSumCpuKernel* kernel = column_sum_cpu[isa()];
  for (int k = 0; k < count; ++k) {
    const ColumnSum& s = sums[k];
    // Whole blocks of 64 columns, so that tasks do not share cache lines.
    run_on_threads((s.n + 63) / 64, 64 * size_of(s.accumulate) * s.chunks,
                   [&](int64_t begin, int64_t end) { kernel(s, begin * 64, std::min(end * 64, s.n)); });
  }
}

}  // namespace fastops
