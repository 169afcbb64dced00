#pragma once
// Tensors to the heads and tables that problem/rope.h speaks of.
#include <list>

#include "core/torch_edge.h"
#include "problem/rope.h"

namespace fastops {

// The arguments that rope and qk_norm_rope share.
struct RopeArguments {
  const Tensor& cos;
  const Tensor& sin;
  const OptionalTensor& positions;
  std::optional<int64_t> rotary_dim;
  bool interleaved;
  int64_t seq_dim;
  bool adjoint;
};

// A problem without its outputs, and the copies that it points into.
class RopeProblem {
 public:
  RopeProblem(const char* op, const Tensor& q, const OptionalTensor& k, const RopeArguments& arguments);

  // [batch, seq, heads, dim] of a tensor like q or k; a copy where its strides allow no such view.
  Heads view(const Tensor& tensor);
  // Uninitialised, in the order of `like`'s memory; `heads` is where a kernel writes, and finish() brings it there.
  Tensor result(const Tensor& like, Heads& heads);
  void finish();
  // Contiguous, for the time of the problem.
  const void* keep(Tensor tensor);

  Rope rope{};
  bool empty = false;

 private:
  std::optional<Heads> fits(const Tensor& tensor) const;
  // The dimensions of [*batch, seq, heads, dim], and a contiguous tensor in that order.
  std::vector<int64_t> order() const;
  Heads in_order(const Tensor& tensor) const;
  void table(const char* op, const Tensor& q, const RopeArguments& arguments);
  void positions(const char* op, const RopeArguments& arguments);
  // The batch's strides as one; nothing where they are more.
  std::optional<int64_t> batch_stride(Shape sizes, Shape strides, size_t dims) const;

  size_t seq_ = 0, rank_ = 0;
  std::optional<size_t> heads_;
  std::vector<int64_t> batch_sizes_;
  std::list<Tensor> kept_;
  std::vector<std::pair<Tensor, Tensor>> copies_;  // to, from
};

// Whether kernels take heads of this size, of tensors that they take.
inline bool rope_supports(const Tensor& q) {
  return kernels_take(q) && (q.dim() == 0 || q.size(q.dim() - 1) <= kMostOfHead);
}

}  // namespace fastops
