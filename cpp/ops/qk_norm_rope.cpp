// qk_norm_rope: rms_norm of each head of q and k, then rope
#include <limits>

#include "core/rows_edge.h"
#include "host/rope.h"

namespace fastops {

FASTOPS_CPU_KERNEL(qk_norm_rope, QkNormRopeCpu);
FASTOPS_CPU_KERNEL(qk_norm_rope_backward, QkNormRopeBackwardCpu);
FASTOPS_CUDA_KERNEL(qk_norm_rope, QkNormRopeCuda);
FASTOPS_CUDA_KERNEL(qk_norm_rope_backward, QkNormRopeBackwardCuda);
FASTOPS_CUDA_KERNEL(qk_norm_rope_chunks, QkNormRopeChunks);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// Fills in the weights and the numbers. The weights come to one dtype where they differ.
static void set_norm(const char* op, QkNormRope& p, RopeProblem& problem, const Tensor& q, const OptionalTensor& k,
                     const OptionalTensor& q_weight, const OptionalTensor& k_weight, std::optional<double> eps,
                     double weight_offset) {
  FASTOPS_CHECK(k || !k_weight, op, "k_weight must be None without k, got a tensor");
  const int64_t dim = p.rotation.dim;
  if (q_weight) check_parameter(op, "q_weight", *q_weight, Shape(&dim, 1), q);
  if (k_weight) check_parameter(op, "k_weight", *k_weight, Shape(&dim, 1), q);
  OptionalTensor a = q_weight, b = k_weight;
  p.parameter = parameter_dtype(q, a, b);
  p.weight[0] = a ? problem.keep(*a) : nullptr;
  p.weight[1] = b ? problem.keep(*b) : nullptr;
  p.eps = eps.value_or(p.dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                                             : std::numeric_limits<float>::epsilon());
  p.weight_offset = weight_offset;
}

// More than the CUDA kernels have lanes for.
static bool has_many_turns(const Tensor& q, const RopeProblem& problem) {
  return q.is_cuda() && all_turns(problem.rope.rotation) > kMostTurnsAtOnce;
}

static int64_t bytes_of_token(const Rope& p) {
  return 2 * (p.input[0].heads + p.input[1].heads) * p.rotation.dim * size_of(p.dtype);
}

Pair qk_norm_rope(const Tensor& q, const OptionalTensor& k, const OptionalTensor& q_weight,
                  const OptionalTensor& k_weight, const Tensor& cos, const Tensor& sin, const OptionalTensor& positions,
                  std::optional<int64_t> rotary_dim, bool interleaved, int64_t seq_dim, std::optional<double> eps,
                  double weight_offset) {
  const auto plain = [&] {
    return call<Pair>("fastops::qk_norm_rope_reference", q, k, q_weight, k_weight, cos, sin, positions, rotary_dim,
                      interleaved, seq_dim, eps, weight_offset);
  };
  if (!rope_supports(q)) return plain();
  const char* op = "qk_norm_rope";
  RopeProblem problem(op, q, k, {cos, sin, positions, rotary_dim, interleaved, seq_dim, false});
  if (has_many_turns(q, problem)) return plain();
  QkNormRope p{problem.rope};
  set_norm(op, p, problem, q, k, q_weight, k_weight, eps, weight_offset);
  if (problem.empty) return {allocate_like(q), k ? allocate_like(*k) : nothing(q, p.dtype)};
  Tensor of_q = problem.result(q, p.output[0]);
  Tensor of_k = k ? problem.result(*k, p.output[1]) : nothing(q, p.dtype);
  if (q.is_cuda()) {
    cuda::Launch launch(op, q.get_device_index());
    launch.check(qk_norm_rope_cuda[launch.group()](p, launch.stream()));
  } else {
    run_on_threads(p.rotation.batch * p.rotation.seq, bytes_of_token(p),
                   [&, kernel = qk_norm_rope_cpu[isa()]](int64_t begin, int64_t end) { kernel(p, begin, end); });
  }
  problem.finish();
  return {std::move(of_q), std::move(of_k)};
}

// The gradients of q, k and the weights; tensors without elements for what is not there or not asked for.
Four qk_norm_rope_backward(const Tensor& grad_q, const OptionalTensor& grad_k, const Tensor& q, const OptionalTensor& k,
                           const OptionalTensor& q_weight, const OptionalTensor& k_weight, const Tensor& cos,
                           const Tensor& sin, const OptionalTensor& positions, std::optional<int64_t> rotary_dim,
                           bool interleaved, int64_t seq_dim, std::optional<double> eps, double weight_offset,
                           bool need_weights) {
  const auto plain = [&] {
    return call<Four>("fastops::qk_norm_rope_backward_reference", grad_q, grad_k, q, k, q_weight, k_weight, cos, sin,
                      positions, rotary_dim, interleaved, seq_dim, eps, weight_offset, need_weights);
  };
  if (!rope_supports(q)) return plain();
  const char* op = "qk_norm_rope_backward";
  check_alike(op, "grad_q", grad_q, "q", q);
  FASTOPS_CHECK(grad_k.has_value() == k.has_value(), op, "grad_k must be there with k alone");
  if (k) check_alike(op, "grad_k", *grad_k, "k", *k);
  RopeProblem problem(op, q, k, {cos, sin, positions, rotary_dim, interleaved, seq_dim, true});
  if (has_many_turns(q, problem)) return plain();
  QkNormRopeBackward p{{problem.rope}};
  set_norm(op, p, problem, q, k, q_weight, k_weight, eps, weight_offset);
  const auto sum_of = [&](const OptionalTensor& weight) {
    return need_weights && weight ? allocate(weight->sizes(), q, *dtype_of(*weight)) : nothing(q, p.dtype);
  };
  Tensor of_q = problem.empty ? allocate_like(q) : problem.result(q, p.output[0]);
  Tensor of_k = !k ? nothing(q, p.dtype) : problem.empty ? allocate_like(*k) : problem.result(*k, p.output[1]);
  Tensor sums[] = {sum_of(q_weight), sum_of(k_weight)};
  if (problem.empty) {
    for (const Tensor& sum : sums) fill_zero(sum);
    return {std::move(of_q), std::move(of_k), std::move(sums[0]), std::move(sums[1])};
  }
  p.grad[0] = problem.view(grad_q);
  if (k) p.grad[1] = problem.view(*grad_k);

  std::optional<cuda::Launch> launch;
  if (q.is_cuda()) launch.emplace(op, q.get_device_index());
  const int64_t tokens = p.rotation.batch * p.rotation.seq, bytes = bytes_of_token(p), dim = p.rotation.dim;
  if (launch)
    qk_norm_rope_chunks_cuda[launch->group()](p, p.chunks);
  else
    p.chunks[0] = p.chunks[1] = plan::cpu::chunks(tokens, bytes);
  const DType computed = accumulate_type(p.dtype);
  Scratch scratch[2];
  ColumnSum columns[2];
  int count = 0;
  for (int tensor = 0; tensor < 2; ++tensor) {
    if (sums[tensor].numel() == 0) continue;
    p.partial[tensor] = scratch[tensor].allocate(q, computed, p.chunks[tensor] * dim);
    columns[count++] = {computed, *dtype_of(sums[tensor]),        p.partial[tensor], p.chunks[tensor], dim,
                        dim,      sums[tensor].mutable_data_ptr()};
  }
  if (launch)
    launch->check(qk_norm_rope_backward_cuda[launch->group()](p, launch->stream()));
  else
    run_on_threads(
        p.chunks[0], (tokens + p.chunks[0] - 1) / p.chunks[0] * bytes,
        [&, kernel = qk_norm_rope_backward_cpu[isa()]](int64_t begin, int64_t end) { kernel(p, begin, end); });
  if (count > 0) sum_columns(launch, columns, count);
  problem.finish();
  return {std::move(of_q), std::move(of_k), std::move(sums[0]), std::move(sums[1])};
}

FASTOPS_OP("qk_norm_rope",
           "(Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, Tensor sin, Tensor? positions=None, "
           "int? rotary_dim=None, bool interleaved=False, int seq_dim=-2, float? eps=None, float weight_offset=0.0) "
           "-> (Tensor, Tensor)",
           qk_norm_rope);
FASTOPS_OP("qk_norm_rope_backward",
           "(Tensor grad_q, Tensor? grad_k, Tensor q, Tensor? k, Tensor? q_weight, Tensor? k_weight, Tensor cos, "
           "Tensor sin, Tensor? positions, int? rotary_dim, bool interleaved, int seq_dim, float? eps, "
           "float weight_offset, bool need_weights) -> (Tensor, Tensor, Tensor, Tensor)",
           qk_norm_rope_backward);

}  // namespace ops
}  // namespace fastops
