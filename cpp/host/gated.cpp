#include "host/gated.h"

#include <limits>

#include "core/rows_edge.h"
#include "host/row.h"
#include "host/strides.h"

namespace fastops {
namespace {

// The two parts of a tensor that has both: shape and strides of one, and what the second begins behind the first.
struct Parts {
  std::vector<int64_t> sizes, strides;
  int64_t distance;  // in elements
  Shape size() const { return Shape(sizes.data(), sizes.size()); }
  Shape stride() const { return Shape(strides.data(), strides.size()); }
  Operand first(void* data) const { return {data, size(), stride()}; }
  Operand second(void* data, DType dtype) const {
    return {static_cast<char*>(data) + distance * size_of(dtype), size(), stride()};
  }
};

Parts parts_of(const Tensor& packed, int64_t dim, bool interleaved) {
  Parts parts{{packed.sizes().begin(), packed.sizes().end()}, {packed.strides().begin(), packed.strides().end()}, 0};
  parts.sizes[dim] /= 2;
  parts.distance = parts.strides[dim] * (interleaved ? 1 : parts.sizes[dim]);
  if (interleaved) parts.strides[dim] *= 2;
  return parts;
}

int64_t check(const GatedNames& names, const Tensor& first, const OptionalTensor& second,
              const OptionalTensor& row_scale, const GatedOptions& options) {
  const auto [op, first_name, second_name] = names;
  const int64_t dim = wrap_dim(op, options.dim, first_name, first);
  if (second) {
    check_alike(op, second_name, *second, first_name, first);
    FASTOPS_CHECK(!options.interleaved, op, "interleaved must be False with ", second_name, ", got True");
  } else {
    FASTOPS_CHECK(first.dim() > 0 && first.size(dim) % 2 == 0, op, first_name, " must have an even size along dim ",
                  dim, " without ", second_name, ", got shape ", text_of(first.sizes()));
  }
  if (row_scale) {
    const Shape sizes = first.sizes();
    check_same_device(op, "row_scale", *row_scale, first_name, first);
    FASTOPS_CHECK(dtype_of(*row_scale), op, "row_scale must be floating point, got ",
                  text_of(row_scale->scalar_type()));
    FASTOPS_CHECK(first.dim() > 0 && dim == first.dim() - 1 && !options.interleaved, op,
                  "row_scale needs halves along the last dimension, got dim ", dim, " of ", text_of(sizes),
                  options.interleaved ? ", interleaved" : "");
    const int64_t n = second ? sizes[dim] : sizes[dim] / 2;
    FASTOPS_CHECK(!first.is_cuda() || n <= kMostOfRow, op, "rows beside row_scale must have at most ", kMostOfRow,
                  " numbers on CUDA, got ", n);
    const Shape rows(sizes.data(), sizes.size() - 1);
    FASTOPS_CHECK(same_shape(row_scale->sizes(), rows), op, "row_scale must have shape ", text_of(rows), ", got ",
                  text_of(row_scale->sizes()));
  }
  return dim;
}

Scalars scalars_of(const GatedOptions& options) {
  return {options.limit.value_or(std::numeric_limits<double>::infinity()), options.alpha, options.offset};
}

void* data_of(const Tensor& tensor) { return const_cast<void*>(tensor.const_data_ptr()); }

// Kernels take fewer dimensions, which contiguous tensors have once they are merged.
bool has_too_many_dims(const Tensor& first, const OptionalTensor& second) {
  return first.dim() > kMaxDims && !(first.is_contiguous() && (!second || second->is_contiguous()));
}
OptionalTensor contiguous(const OptionalTensor& tensor) {
  return tensor ? OptionalTensor(as_contiguous(*tensor)) : std::nullopt;
}

// Uninitialised, with an elementwise op's strides.
Tensor allocate_output(const Tensor& first, const OptionalTensor& second, int64_t dim, bool interleaved) {
  if (second) return allocate_elementwise({first, *second}, first.sizes());
  const Parts parts = parts_of(first, dim, interleaved);
  const View views[] = {{parts.size(), parts.stride()}, {parts.size(), parts.stride()}};
  std::vector<int64_t> strides(parts.sizes.size());
  elementwise_strides(views, 2, parts.size(), strides.data());
  return allocate(parts.size(), Shape(strides.data(), strides.size()), first, *dtype_of(first));
}

void copy(const Tensor& to, const Tensor& from) { call<Tensor>("aten::copy_", to, from, false); }

// Rows of n at unit strides, as problem/pointwise.h wants rows that have numbers.
class RowProblem {
 public:
  RowProblem(int64_t rows, int64_t n, const GatedOptions& options) {
    const Scalars scalars = scalars_of(options);
    std::copy(scalars.begin(), scalars.end(), p.scalars);
    p.operands = 0;
    p.ndim = 2;
    p.numel = rows * n;
    p.sizes[0] = n;
    p.sizes[1] = rows;
  }
  void add(const void* data, int64_t stride) {
    p.data[p.operands] = const_cast<void*>(data);
    p.strides[p.operands][0] = 1;
    p.strides[p.operands++][1] = stride;
  }
  // The gate and up, or their gradients, of one tensor or two.
  void add_pair(const void* first, int64_t first_stride, const void* second, int64_t second_stride, bool up_first) {
    if (up_first) add(second, second_stride);
    add(first, first_stride);
    if (!up_first) add(second, second_stride);
  }
  Pointwise p;
};

const void* behind(const void* data, int64_t elements, DType dtype) {
  return static_cast<const char*>(data) + elements * size_of(dtype);
}

// The rows of the two, however they come.
struct RowPair {
  Rows first;
  std::optional<Rows> second;
  int64_t n;
  RowPair(const Tensor& a, const OptionalTensor& b) : first(as_rows(a, 1)), n(b ? first.n : first.n / 2) {
    if (b) second = as_rows(*b, 1);
  }
  void add_to(RowProblem& problem, DType dtype, bool up_first) const {
    second ? problem.add_pair(first.data(), first.stride, second->data(), second->stride, up_first)
           : problem.add_pair(first.data(), first.stride, behind(first.data(), n, dtype), first.stride, up_first);
  }
};

Tensor forward_by_rows(const GatedNames& names, PointwiseKernels kernels, const Tensor& first,
                       const OptionalTensor& second, const Tensor& row_scale, const GatedOptions& options) {
  const DType dtype = *dtype_of(first);
  std::vector<int64_t> sizes(first.sizes().begin(), first.sizes().end());
  if (!second) sizes.back() /= 2;
  Tensor output = allocate(Shape(sizes.data(), sizes.size()), first, dtype);
  if (output.numel() == 0) return output;
  const RowPair pair(first, second);
  const Tensor scale = to_dtype(as_contiguous(row_scale), accumulate_type(dtype));
  RowProblem problem(pair.first.count, pair.n, options);
  problem.add(output.mutable_data_ptr(), pair.n);
  pair.add_to(problem, dtype, options.up_first);
  problem.p.row_scale = scale.const_data_ptr();
  run_pointwise(names.op, kernels, first, dtype, problem.p);
  return output;
}

std::tuple<Tensor, Tensor, Tensor> backward_by_rows(const GatedNames& names, PointwiseKernels kernels,
                                                    const Tensor& grad, const Tensor& first,
                                                    const OptionalTensor& second, const Tensor& row_scale,
                                                    bool needs_scale, const GatedOptions& options) {
  const DType dtype = *dtype_of(first), computed = accumulate_type(dtype);
  Tensor grad_first = allocate(first.sizes(), first, dtype);
  Tensor grad_second = second ? allocate(first.sizes(), first, dtype) : nothing(first, dtype);
  Tensor sums = needs_scale ? allocate(row_scale.sizes(), first, computed) : nothing(first, computed);
  if (grad.numel() == 0) {
    fill_zero(sums);
  } else {
    const RowPair pair(first, second);
    const Rows g = as_rows(grad, 1);
    const Tensor scale = to_dtype(as_contiguous(row_scale), computed);
    RowProblem problem(pair.first.count, pair.n, options);
    void* out = grad_first.mutable_data_ptr();
    second ? problem.add_pair(out, pair.n, grad_second.mutable_data_ptr(), pair.n, options.up_first)
           : problem.add_pair(out, 2 * pair.n, behind(out, pair.n, dtype), 2 * pair.n, options.up_first);
    problem.add(g.data(), g.stride);
    pair.add_to(problem, dtype, options.up_first);
    problem.p.row_scale = scale.const_data_ptr();
    problem.p.row_sums = needs_scale ? sums.mutable_data_ptr() : nullptr;
    run_pointwise(names.op, kernels, first, dtype, problem.p);
  }
  if (needs_scale) sums = to_dtype(std::move(sums), *dtype_of(row_scale));
  return {std::move(grad_first), std::move(grad_second), std::move(sums)};
}

}  // namespace

Tensor gated_forward(const GatedNames& names, PointwiseKernels kernels, const Tensor& first,
                     const OptionalTensor& second, const OptionalTensor& row_scale, const GatedOptions& options) {
  const int64_t dim = check(names, first, second, row_scale, options);
  if (row_scale) return forward_by_rows(names, kernels, first, second, *row_scale, options);
  Tensor output = allocate_output(first, second, dim, options.interleaved);
  if (has_too_many_dims(first, second)) {
    copy(output, gated_forward(names, kernels, as_contiguous(first), contiguous(second), row_scale, options));
    return output;
  }
  const DType dtype = *dtype_of(first);
  const auto run = [&](const Operand& x, const Operand& y) {
    const Operand operands[] = {{output.mutable_data_ptr(), output.sizes(), output.strides()},
                                options.up_first ? y : x,
                                options.up_first ? x : y};
    run_pointwise(names.op, kernels, first, dtype, operands, 3, scalars_of(options));
  };
  if (second) {
    run({data_of(first), first.sizes(), first.strides()}, {data_of(*second), second->sizes(), second->strides()});
  } else {
    const Parts parts = parts_of(first, dim, options.interleaved);
    run(parts.first(data_of(first)), parts.second(data_of(first), dtype));
  }
  return output;
}

std::tuple<Tensor, Tensor, Tensor> gated_backward(const GatedNames& names, PointwiseKernels kernels, const Tensor& grad,
                                                  const Tensor& first, const OptionalTensor& second,
                                                  const OptionalTensor& row_scale, bool needs_scale,
                                                  const GatedOptions& options) {
  const int64_t dim = check(names, first, second, row_scale, options);
  const DType dtype = *dtype_of(first);
  std::vector<int64_t> sizes(first.sizes().begin(), first.sizes().end());
  if (!second) sizes[dim] /= 2;
  const Shape shape(sizes.data(), sizes.size());
  check_same_kind(names.op, "grad", grad, names.first, first);
  FASTOPS_CHECK(same_shape(grad.sizes(), shape), names.op, "grad must have shape ", text_of(shape), ", got ",
                text_of(grad.sizes()));
  if (row_scale) return backward_by_rows(names, kernels, grad, first, second, *row_scale, needs_scale, options);

  Tensor grad_first = allocate_like(first), grad_second = second ? allocate_like(*second) : nothing(first, dtype);
  if (has_too_many_dims(first, second) || has_too_many_dims(grad, std::nullopt)) {
    const auto [a, b, none] = gated_backward(names, kernels, as_contiguous(grad), as_contiguous(first),
                                             contiguous(second), row_scale, needs_scale, options);
    copy(grad_first, a);
    if (second) copy(grad_second, b);
    return {std::move(grad_first), std::move(grad_second), nothing(first, accumulate_type(dtype))};
  }
  const Operand grads{data_of(grad), grad.sizes(), grad.strides()};
  const auto run = [&](const Operand& dx, const Operand& dy, const Operand& x, const Operand& y) {
    const bool swapped = options.up_first;
    const Operand operands[] = {swapped ? dy : dx, swapped ? dx : dy, grads, swapped ? y : x, swapped ? x : y};
    run_pointwise(names.op, kernels, first, dtype, operands, 5, scalars_of(options));
  };
  if (second) {
    run({grad_first.mutable_data_ptr(), grad_first.sizes(), grad_first.strides()},
        {grad_second.mutable_data_ptr(), grad_second.sizes(), grad_second.strides()},
        {data_of(first), first.sizes(), first.strides()}, {data_of(*second), second->sizes(), second->strides()});
  } else {
    const Parts parts = parts_of(first, dim, options.interleaved), out = parts_of(grad_first, dim, options.interleaved);
    void* to = grad_first.mutable_data_ptr();
    run(out.first(to), out.second(to, dtype), parts.first(data_of(first)), parts.second(data_of(first), dtype));
  }
  return {std::move(grad_first), std::move(grad_second), nothing(first, accumulate_type(dtype))};
}

}  // namespace fastops
