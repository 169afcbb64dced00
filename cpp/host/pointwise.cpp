#include "host/pointwise.h"

#include <algorithm>

#include "host/strides.h"

namespace fastops {
namespace {

// Stride of `operand` along dimension d of the shape `sizes`: 0 where it is broadcast.
int64_t stride_along(const Operand& operand, Shape sizes, size_t d) {
  size_t missing = sizes.size() - operand.sizes.size();
  return d < missing || operand.sizes[d - missing] == 1 ? 0 : operand.strides[d - missing];
}

int64_t numel_of(Shape sizes) {
  int64_t numel = 1;
  for (int64_t size : sizes) numel *= size;
  return numel;
}

// Whether the elements lie one behind the other, in whatever order of the dimensions.
bool is_dense(const Operand& operand, int64_t numel) {
  int64_t span = 1;
  for (size_t d = 0; d < operand.sizes.size(); ++d) span += (operand.sizes[d] - 1) * operand.strides[d];
  return span == numel;
}

// Fills in the index space. False if more than kMaxDims dimensions remain.
bool describe(const Operand* operands, int count, Pointwise& p) {
  p.operands = count;
  p.numel = numel_of(operands[0].sizes);
  for (int k = 0; k < count; ++k) p.data[k] = operands[k].data;

  // Operands of a dense one's very layout are one contiguous run each.
  bool alike = is_dense(operands[0], p.numel);
  for (int k = 1; alike && k < count; ++k)
    alike = same_shape(operands[0].sizes, operands[k].sizes) && same_shape(operands[0].strides, operands[k].strides);
  if (!alike) {
    p.ndim = merge_dims(operands, count, p.sizes, p.strides);
    return p.ndim >= 0;
  }
  p.ndim = 1;
  p.sizes[0] = p.numel;
  for (int k = 0; k < count; ++k) p.strides[k][0] = 1;
  return true;
}

}  // namespace

int merge_dims(const Operand* operands, int count, int64_t* merged, int64_t (*strides)[kMaxDims]) {
  Shape sizes = operands[0].sizes;
  std::vector<size_t> order;
  for (size_t d = sizes.size(); d-- > 0;)
    if (sizes[d] != 1) order.push_back(d);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return stride_along(operands[0], sizes, a) < stride_along(operands[0], sizes, b);
  });

  int last = -1;
  for (size_t d : order) {
    bool joins = last >= 0;
    for (int k = 0; joins && k < count; ++k)
      joins = stride_along(operands[k], sizes, d) == strides[k][last] * merged[last];
    if (joins) {
      merged[last] *= sizes[d];
      continue;
    }
    if (++last == kMaxDims) return -1;
    merged[last] = sizes[d];
    for (int k = 0; k < count; ++k) strides[k][last] = stride_along(operands[k], sizes, d);
  }
  return last + 1;
}

void run_pointwise(const char* op, PointwiseKernels kernels, const Tensor& device_of, DType dtype, const Pointwise& p) {
  if (p.numel == 0) return;
  if (device_of.is_cuda()) {
    cuda::Launch launch(op, device_of.get_device_index());
    launch.check(kernels.cuda[launch.group()](dtype, p, launch.stream()));
    return;
  }
  const bool by_rows = p.row_scale || p.row_sums;
  const int64_t tasks = by_rows ? p.sizes[1] : p.numel, each = by_rows ? p.sizes[0] : 1;
  run_on_threads(tasks, each * size_of(accumulate_type(dtype)),
                 [&, kernel = kernels.cpu[isa()]](int64_t begin, int64_t end) { kernel(dtype, p, begin, end); });
}

void run_pointwise(const char* op, PointwiseKernels kernels, const Tensor& device_of, DType dtype,
                   const Operand* operands, int count, Scalars scalars) {
  Pointwise p;
  std::copy(scalars.begin(), scalars.end(), p.scalars);
  FASTOPS_CHECK(describe(operands, count, p), op, "more dimensions than kMaxDims");
  run_pointwise(op, kernels, device_of, dtype, p);
}

void run_pointwise(const char* op, PointwiseKernels kernels, Tensors outputs, Tensors inputs, Scalars scalars) {
  FASTOPS_CHECK(outputs.size() + inputs.size() <= kMaxOperands, op, "more operands than kMaxOperands");
  Operand operands[kMaxOperands];
  int count = 0;
  for (const Tensor& t : outputs) operands[count++] = {t.mutable_data_ptr(), t.sizes(), t.strides()};
  for (const Tensor& t : inputs) operands[count++] = {const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides()};
  const Tensor& first = *outputs.begin();
  const DType dtype = *dtype_of(first);
  Pointwise p;
  std::copy(scalars.begin(), scalars.end(), p.scalars);
  if (describe(operands, count, p)) return run_pointwise(op, kernels, first, dtype, p);

  // Too many dimensions in too many orders: through contiguous copies.
  std::vector<Tensor> copies;
  copies.reserve(count);
  for (const Tensor& t : outputs) copies.push_back(allocate(t.sizes(), t, dtype));
  for (const Tensor& t : inputs) copies.push_back(as_contiguous(call<Tensor>("aten::expand", t, first.sizes(), false)));
  for (int k = 0; k < count; ++k) {
    const bool written = k < static_cast<int>(outputs.size());
    operands[k] = {written ? copies[k].mutable_data_ptr() : const_cast<void*>(copies[k].const_data_ptr()),
                   copies[k].sizes(), copies[k].strides()};
  }
  describe(operands, count, p);
  run_pointwise(op, kernels, first, dtype, p);
  int k = 0;
  for (const Tensor& t : outputs) {
    call<Tensor>("aten::copy_", t, copies[k++], false);
  }
}

Tensor allocate_elementwise(Tensors inputs, Shape sizes) {
  const Tensor& first = *inputs.begin();
  if (std::all_of(inputs.begin(), inputs.end(),
                  [&](const Tensor& t) { return same_shape(t.sizes(), sizes) && t.is_contiguous(); }))
    return allocate(sizes, first, *dtype_of(first));
  View views[kMaxOperands];
  size_t count = 0;
  for (const Tensor& t : inputs) views[count++] = {t.sizes(), t.strides()};
  std::vector<int64_t> strides(sizes.size());
  elementwise_strides(views, count, sizes, strides.data());
  return allocate(sizes, Shape(strides.data(), strides.size()), first, *dtype_of(first));
}

Tensor unary(const char* op, PointwiseKernels kernels, const Tensor& input) {
  Tensor output = allocate_elementwise({input}, input.sizes());
  run_pointwise(op, kernels, {output}, {input});
  return output;
}

Tensor unary_backward(const char* op, PointwiseKernels kernels, const Tensor& grad, const char* saved_name,
                      const Tensor& saved) {
  check_alike(op, "grad", grad, saved_name, saved);
  Tensor grad_input = allocate_like(saved);
  run_pointwise(op, kernels, {grad_input}, {grad, saved});
  return grad_input;
}

std::vector<int64_t> broadcast(const char* op, const char* a_name, Shape a, const char* b_name, Shape b) {
  std::vector<int64_t> sizes(std::max(a.size(), b.size()));
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t from_a = d < a.size() ? a[a.size() - 1 - d] : 1;
    int64_t from_b = d < b.size() ? b[b.size() - 1 - d] : 1;
    FASTOPS_CHECK(from_a == from_b || from_a == 1 || from_b == 1, op, a_name, " and ", b_name,
                  " must have shapes that broadcast, got ", text_of(a), " and ", text_of(b));
    sizes[sizes.size() - 1 - d] = from_a == 1 ? from_b : from_a;
  }
  return sizes;
}

}  // namespace fastops
