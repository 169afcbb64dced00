#include "host/row.h"

#include "plan/row.h"

namespace fastops {
namespace {

// The dimensions in order, `dim` last.
std::vector<int64_t> with_last(int64_t rank, int64_t dim) {
  std::vector<int64_t> order;
  for (int64_t d = 0; d < rank; ++d)
    if (d != dim) order.push_back(d);
  if (rank > 0) order.push_back(dim);
  return order;
}

Tensor permute(const Tensor& tensor, const std::vector<int64_t>& order) {
  return call<Tensor>("aten::permute", tensor, order);
}

int64_t size_along(const Tensor& tensor, int64_t dim) { return tensor.dim() == 0 ? 1 : tensor.size(dim); }

// Whether moving `dim` to the end leaves the order of elements as it is.
bool is_last(const Tensor& tensor, int64_t dim) {
  if (tensor.numel() == 0 || size_along(tensor, dim) == 1) return true;
  const Shape sizes = tensor.sizes();
  for (int64_t d = dim + 1; d < tensor.dim(); ++d)
    if (sizes[d] != 1) return false;
  return true;
}

// Return the rows as a view of two dimensions, the outer and the inner, or nothing if the strides do not allow it.
// Dimensions of size 1 never matter.
std::optional<RowsView> as_view(const Tensor& tensor, int64_t dim, int64_t count, int64_t n) {
  const Shape sizes = tensor.sizes(), strides = tensor.strides();
  if (n > 1 && strides[dim] != 1) return std::nullopt;
  struct {
    int64_t size, stride;
  } found[2];  // the inner one first
  int dims = 0;
  for (int64_t d = tensor.dim(); d-- > 0;) {
    if (d == dim || sizes[d] == 1) continue;
    if (dims > 0 && strides[d] == found[dims - 1].stride * found[dims - 1].size)
      found[dims - 1].size *= sizes[d];
    else if (dims == 2)
      return std::nullopt;
    else
      found[dims++] = {sizes[d], strides[d]};
  }
  const void* data = tensor.const_data_ptr();
  if (dims == 0) return RowsView{data, count, n, 0};
  return RowsView{data, found[0].size, found[0].stride, dims == 2 ? found[1].stride : 0};
}

// Whether CUDA kernels of softmax and the losses can read the rows where they are: each row of whole vectors has to begin
// at a multiple of a vector's bytes (plan/row.h).
bool is_aligned(const RowsView& view, int64_t count, int64_t n, DType read, DType written) {
  const plan::row::Problem problem{plan::row::kPowers, read, written, n};
  const plan::Access access = problem.access();
  const int64_t size = size_of(read), bytes = access == plan::Access::word ? size : problem.width(access) * size;
  return starts_at(view.data, bytes) && (view.inner <= 1 || view.inner_stride * size % bytes == 0) &&
         (count <= view.inner || view.outer_stride * size % bytes == 0);
}

}  // namespace

int64_t wrap_dim(const char* op, int64_t dim, const char* name, const Tensor& tensor) {
  const int64_t rank = std::max<int64_t>(tensor.dim(), 1);
  FASTOPS_CHECK(-rank <= dim && dim < rank, op, "dim must be ", -rank, " to ", rank - 1, " for ", name, "'s ",
                tensor.dim(), " dimensions, got ", dim);
  return dim < 0 ? dim + rank : dim;
}

TensorRows rows_along(const Tensor& tensor, int64_t dim, DType written) {
  const int64_t n = size_along(tensor, dim), all = tensor.numel();
  const int64_t count = n > 0 ? all / n : 0;
  if (all == 0) return {std::nullopt, {nullptr, 1, n, 0}, count, n};
  const auto view = as_view(tensor, dim, count, n);
  if (view && (!tensor.is_cuda() || is_aligned(*view, count, n, *dtype_of(tensor), written)))
    return {std::nullopt, *view, count, n};
  Tensor rows = is_last(tensor, dim) ? tensor : permute(tensor, with_last(tensor.dim(), dim));
  Tensor copy = view ? copy_of(rows) : as_contiguous(rows);
  const void* data = copy.const_data_ptr();
  return {std::move(copy), {data, count, n, 0}, count, n};
}

static Tensor allocate_in_order(const Tensor& like, const std::vector<int64_t>& order, DType dtype) {
  if (order.empty()) return allocate(like.sizes(), like, dtype);
  std::vector<int64_t> sizes;
  for (int64_t d : order) sizes.push_back(like.size(d));
  return allocate(sizes, like, dtype);
}

RowResult::RowResult(const Tensor& like, int64_t dim, DType dtype)
    : order_(is_last(like, dim) ? std::vector<int64_t>{} : with_last(like.dim(), dim)),
      rows_(allocate_in_order(like, order_, dtype)) {}

Tensor RowResult::view() && {
  if (order_.empty()) return std::move(rows_);
  std::vector<int64_t> back(order_.size());
  for (size_t d = 0; d < order_.size(); ++d) back[order_[d]] = static_cast<int64_t>(d);
  return permute(rows_, back);
}

Tensor RowResult::finish() && { return as_contiguous(std::move(*this).view()); }

}  // namespace fastops
