#include "host/rope.h"

#include "host/row.h"

namespace fastops {
namespace {

std::vector<int64_t> without(Shape sizes, const std::optional<size_t>& dim) {
  std::vector<int64_t> rest;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (d != dim) rest.push_back(sizes[d]);
  return rest;
}

Shape shape_of(const std::vector<int64_t>& sizes) { return Shape(sizes.data(), sizes.size()); }

// Whether `sizes` are the batch's, or broadcast to it.
bool broadcasts(Shape sizes, size_t dims, const std::vector<int64_t>& batch) {
  if (dims > batch.size()) return false;
  for (size_t d = 0; d < dims; ++d) {
    const int64_t own = batch[batch.size() - dims + d];
    if (sizes[d] != 1 && sizes[d] != own) return false;
  }
  return true;
}

int64_t rotary_dim_of(const char* op, int64_t width, int64_t dim, std::optional<int64_t> given) {
  if (given) {
    FASTOPS_CHECK(2 <= *given && *given <= dim && *given % 2 == 0, op, "rotary_dim must be even and 2 to ", dim,
                  ", the numbers of a head, got ", *given);
    FASTOPS_CHECK(width == *given || 2 * width == *given, op, "cos must have rows of rotary_dim ", *given,
                  " or half as many, got ", width);
    return *given;
  }
  FASTOPS_CHECK(1 <= width && width <= dim, op, "cos must have rows of at most ", dim, ", the numbers of a head, got ",
                width);
  if (width % 2 == 0 && 2 * width > dim) return width;
  FASTOPS_CHECK(2 * width <= dim, op, "cos must have rows of an even size, or of at most ", dim / 2, ", got ", width);
  FASTOPS_CHECK(width % 2 == 1, op, "cos has rows of ", width, " for heads of ", dim, ": say rotary_dim=", width,
                " if that is all that is rotated, or rotary_dim=", 2 * width, " if each is for two numbers");
  return 2 * width;
}

}  // namespace

RopeProblem::RopeProblem(const char* op, const Tensor& q, const OptionalTensor& k, const RopeArguments& arguments) {
  const int64_t rank = q.dim();
  FASTOPS_CHECK(rank >= 2, op, "q must have a sequence and a head dimension, got shape ", text_of(q.sizes()));
  FASTOPS_CHECK(-rank <= arguments.seq_dim && arguments.seq_dim < rank - 1 && arguments.seq_dim != -1, op,
                "seq_dim must be ", -rank, " to -2 for q's ", rank, " dimensions, got ", arguments.seq_dim);
  rank_ = rank;
  seq_ = arguments.seq_dim < 0 ? arguments.seq_dim + rank : arguments.seq_dim;
  const size_t beside = seq_ + 2 == rank_ ? rank_ - 3 : rank_ - 2;  // rank_ - 3 of 2 dimensions: there is none
  if (rank_ > 2) heads_ = beside;
  for (size_t d = 0; d + 1 < rank_; ++d)
    if (d != seq_ && d != heads_) batch_sizes_.push_back(q.size(d));
  if (k) {
    check_same_kind(op, "k", *k, "q", q);
    FASTOPS_CHECK(k->dim() == rank && without(k->sizes(), heads_) == without(q.sizes(), heads_), op,
                  "k must have q's shape ", text_of(q.sizes()), " but for the number of heads, got ",
                  text_of(k->sizes()));
  }
  Rotation& r = rope.rotation;
  rope.dtype = *dtype_of(q);
  r.batch = 1;
  for (int64_t size : batch_sizes_) r.batch *= size;
  r.seq = q.size(seq_);
  r.dim = q.size(rank - 1);
  r.interleaved = arguments.interleaved;
  r.adjoint = arguments.adjoint;
  table(op, q, arguments);
  empty = q.numel() == 0 && (!k || k->numel() == 0);
  if (empty) return;
  rope.tensors = k ? 2 : 1;
  rope.input[0] = view(q);
  if (k) rope.input[1] = view(*k);
}

void RopeProblem::table(const char* op, const Tensor& q, const RopeArguments& arguments) {
  const auto& [cos, sin, positions, rotary_dim, interleaved, seq_dim, adjoint] = arguments;
  Rotation& r = rope.rotation;
  check_same_device(op, "cos", cos, "q", q);
  FASTOPS_CHECK(dtype_of(cos), op, "cos must be floating point, got ", text_of(cos.scalar_type()));
  check_alike(op, "sin", sin, "cos", cos);
  const int64_t dims = cos.dim();
  std::vector<int64_t> expected = batch_sizes_;
  expected.push_back(r.seq);
  if (positions)
    FASTOPS_CHECK(dims == 2, op, "cos must have 2 dimensions, of positions and numbers, got shape ",
                  text_of(cos.sizes()));
  else
    FASTOPS_CHECK(dims >= 2 && cos.size(dims - 2) == r.seq && broadcasts(cos.sizes(), dims - 2, batch_sizes_), op,
                  "cos must have a row for each of ", text_of(shape_of(expected)),
                  ", the batch and the sequence, or of ", text_of(Shape(&r.seq, 1)), ", got shape ",
                  text_of(cos.sizes()));
  const int64_t width = cos.size(dims - 1);
  r.rotary = rotary_dim_of(op, width, r.dim, rotary_dim);
  r.full = width == r.rotary;
  r.table_rows = cos.size(dims - 2);
  const DType own = *dtype_of(cos);
  r.table = own == rope.dtype || own == DType::f32 ? own : rope.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto prepare = [&](const Tensor& tensor, bool contiguous) {
    Tensor t = own == r.table ? tensor : to_dtype(tensor, r.table);
    if (contiguous || (width > 1 && t.stride(dims - 1) != 1)) t = as_contiguous(std::move(t));
    return t;
  };
  // As the tables lie, if both lie alike and their batch is one stride.
  for (const bool contiguous : {false, true}) {
    const Tensor c = prepare(cos, contiguous), s = prepare(sin, contiguous);
    const auto stride = positions ? 0 : batch_stride(c.sizes(), c.strides(), dims - 2);
    if (contiguous || (stride && same_shape(c.strides(), s.strides()))) {
      if (stride) {
        r.table_batch_stride = *stride;
        r.table_row_stride = c.stride(dims - 2);
        r.cos = keep(c);
        r.sin = keep(s);
        break;
      }
      std::vector<int64_t> whole = expected;  // a batch that is broadcast in part
      whole.push_back(width);
      r.cos = keep(as_contiguous(call<Tensor>("aten::expand", c, shape_of(whole), false)));
      r.sin = keep(as_contiguous(call<Tensor>("aten::expand", s, shape_of(whole), false)));
      r.table_row_stride = width;
      r.table_batch_stride = r.seq * width;
    }
  }
  if (positions) this->positions(op, arguments);
}

void RopeProblem::positions(const char* op, const RopeArguments& arguments) {
  const Tensor& given = *arguments.positions;
  Rotation& r = rope.rotation;
  check_same_device(op, "positions", given, "cos", arguments.cos);
  const bool is_long = given.scalar_type() == ScalarType::Long;
  FASTOPS_CHECK(is_long || given.scalar_type() == ScalarType::Int, op,
                "positions must be torch.int64 or torch.int32, got ", text_of(given.scalar_type()));
  std::vector<int64_t> expected = batch_sizes_;
  expected.push_back(r.seq);
  const int64_t dims = given.dim();
  FASTOPS_CHECK(dims >= 1 && given.size(dims - 1) == r.seq && broadcasts(given.sizes(), dims - 1, batch_sizes_), op,
                "positions must have shape ", text_of(shape_of(expected)), " or [", r.seq, "], got ",
                text_of(given.sizes()));
  auto stride = batch_stride(given.sizes(), given.strides(), dims - 1);
  Tensor whole = stride ? given : as_contiguous(call<Tensor>("aten::expand", given, shape_of(expected), false));
  r.long_positions = is_long;
  r.position_seq_stride = whole.stride(whole.dim() - 1);
  r.position_batch_stride = stride ? *stride : r.seq;
  r.positions = keep(whole);
  if (!given.is_cpu()) return;
  for (int64_t b = 0; b < r.batch; ++b)
    for (int64_t s = 0; s < r.seq; ++s) {
      const int64_t at = b * r.position_batch_stride + s * r.position_seq_stride;
      const int64_t p =
          is_long ? static_cast<const int64_t*>(r.positions)[at] : static_cast<const int32_t*>(r.positions)[at];
      FASTOPS_CHECK(0 <= p && p < r.table_rows, op, "positions must be 0 to ", r.table_rows - 1, ", got ", p);
    }
}

std::optional<int64_t> RopeProblem::batch_stride(Shape sizes, Shape strides, size_t dims) const {
  int64_t count = 1, stride = 0;
  bool any = false;
  const size_t missing = batch_sizes_.size() - dims;
  for (size_t k = batch_sizes_.size(); k-- > 0;) {
    if (batch_sizes_[k] == 1) continue;
    const int64_t own = k < missing || sizes[k - missing] == 1 ? 0 : strides[k - missing];
    if (!any)
      stride = own;
    else if (own != stride * count)
      return std::nullopt;
    any = true;
    count *= batch_sizes_[k];
  }
  return stride;
}

std::optional<Heads> RopeProblem::fits(const Tensor& tensor) const {
  const Shape sizes = tensor.sizes(), strides = tensor.strides();
  if (sizes[rank_ - 1] > 1 && strides[rank_ - 1] != 1) return std::nullopt;
  std::vector<int64_t> batch;
  for (size_t d = 0; d + 1 < rank_; ++d)
    if (d != seq_ && d != heads_) batch.push_back(strides[d]);
  const auto stride = batch_stride(shape_of(batch_sizes_), shape_of(batch), batch.size());
  if (!stride) return std::nullopt;
  return Heads{const_cast<void*>(tensor.const_data_ptr()), heads_ ? sizes[*heads_] : 1, *stride, strides[seq_],
               heads_ ? strides[*heads_] : 0};
}

std::vector<int64_t> RopeProblem::order() const {
  std::vector<int64_t> order;
  for (size_t d = 0; d + 1 < rank_; ++d)
    if (d != seq_ && d != heads_) order.push_back(static_cast<int64_t>(d));
  order.push_back(static_cast<int64_t>(seq_));
  if (heads_) order.push_back(static_cast<int64_t>(*heads_));
  order.push_back(static_cast<int64_t>(rank_ - 1));
  return order;
}

Heads RopeProblem::in_order(const Tensor& tensor) const {
  const int64_t heads = heads_ ? tensor.size(tensor.dim() - 2) : 1, dim = rope.rotation.dim, token = heads * dim;
  return {const_cast<void*>(tensor.const_data_ptr()), heads, rope.rotation.seq * token, token, dim};
}

Heads RopeProblem::view(const Tensor& tensor) {
  if (const auto heads = fits(tensor)) return *heads;
  kept_.push_back(as_contiguous(call<Tensor>("aten::permute", tensor, order())));
  return in_order(kept_.back());
}

Tensor RopeProblem::result(const Tensor& like, Heads& heads) {
  Tensor made = allocate_like(like);
  if (const auto own = fits(made)) {
    heads = *own;
    return made;
  }
  const std::vector<int64_t> dims = order();
  std::vector<int64_t> sizes, back(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    sizes.push_back(like.size(dims[d]));
    back[dims[d]] = static_cast<int64_t>(d);
  }
  const Tensor written = allocate(shape_of(sizes), made, rope.dtype);
  heads = in_order(written);
  copies_.emplace_back(made, call<Tensor>("aten::permute", written, back));
  return made;
}

void RopeProblem::finish() {
  for (const auto& [to, from] : copies_) call<Tensor>("aten::copy_", to, from, false);
}

const void* RopeProblem::keep(Tensor tensor) {
  kept_.push_back(std::move(tensor));
  return kept_.back().const_data_ptr();
}

}  // namespace fastops
