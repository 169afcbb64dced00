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
  if (fits || n * count == 0) return {std::nullopt, tensor.const_data_ptr(), count, n, stride < 0 ? n : stride};
  Tensor copy = as_contiguous(tensor);
  const void* data = copy.const_data_ptr();
  return {std::move(copy), data, count, n, n};
}

static int64_t word_bytes(const Tensor& tensor, int64_t n) {
  const int64_t size = size_of(*dtype_of(tensor)), bytes = n * size;
  return bytes % 16 == 0 ? 16 : size == 2 && bytes % 8 == 0 ? 8 : size;
}

Tensor copy_of(const Tensor& tensor) {
  return call<Tensor>("aten::clone", tensor, std::optional(torch::headeronly::MemoryFormat::Contiguous));
}

Rows as_aligned_rows(const Tensor& tensor, int64_t dims) {
  Rows rows = as_rows(tensor, dims);
  const int64_t size = size_of(*dtype_of(tensor)), word = word_bytes(tensor, rows.n);
  if (rows.count == 0 || rows.n == 0 ||
      (starts_at(rows.data(), word) && (rows.count == 1 || rows.stride * size % word == 0)))
    return rows;
  Tensor copy = copy_of(tensor);
  const void* data = copy.const_data_ptr();
  return {std::move(copy), data, rows.count, rows.n, rows.n};
}

Tensor as_aligned(Tensor tensor) {
  Tensor dense = as_contiguous(std::move(tensor));
  return dense.numel() == 0 || starts_at(dense.const_data_ptr(), 16) ? dense : copy_of(dense);
}

void check_parameter(const char* op, const char* name, const Tensor& parameter, Shape shape, const Tensor& input) {
  check_same_device(op, name, parameter, "input", input);
  FASTOPS_CHECK(same_shape(parameter.sizes(), shape), op, name, " must have shape ", text_of(shape), ", got ",
                text_of(parameter.sizes()));
  const bool half = size_of(*dtype_of(input)) == 2;
  FASTOPS_CHECK(same_dtype(parameter, input) || (half && dtype_of(parameter) == DType::f32), op, name,
                " must have input's dtype ", text_of(input.scalar_type()), half ? " or torch.float32" : "", ", got ",
                text_of(parameter.scalar_type()));
}

DType parameter_dtype(const Tensor& input, OptionalTensor& weight, OptionalTensor& bias) {
  const DType own = *dtype_of(input);
  DType common = weight ? *dtype_of(*weight) : bias ? *dtype_of(*bias) : own;
  if (weight && bias && !same_dtype(*weight, *bias)) common = DType::f32;
  for (OptionalTensor* t : {&weight, &bias})
    if (*t) *t = to_dtype(as_contiguous(*std::move(*t)), common);
  return common;
}

void* Scratch::allocate(const Tensor& device_of, DType dtype, int64_t count) {
  if (device_of.is_cuda()) {
    tensor_ = fastops::allocate(std::array<int64_t, 1>{count}, device_of, dtype);
    return tensor_->mutable_data_ptr();
  }
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(count * size_of(dtype));
  return bytes_.get();
}

void sum_columns(const std::optional<cuda::Launch>& launch, const ColumnSum* sums, int count) {
  if (launch) {
    launch->check(column_sum_cuda[launch->group()](sums, count, launch->stream()));
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
