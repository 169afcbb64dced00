// rope: pairs of a head's numbers turned by the angles of its token
#include "host/rope.h"

namespace fastops {

FASTOPS_CPU_KERNEL(rope, RopeCpu);
FASTOPS_CUDA_KERNEL(rope, RopeCuda);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;

// `adjoint`: of gradients of the results those of q and k.
Pair rope(const Tensor& q, const OptionalTensor& k, const Tensor& cos, const Tensor& sin,
          const OptionalTensor& positions, std::optional<int64_t> rotary_dim, bool interleaved, int64_t seq_dim,
          bool adjoint) {
  if (!rope_supports(q))
    return call<Pair>("fastops::rope_reference", q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim, adjoint);
  RopeProblem problem("rope", q, k, {cos, sin, positions, rotary_dim, interleaved, seq_dim, adjoint});
  Rope& p = problem.rope;
  if (problem.empty) return {allocate_like(q), k ? allocate_like(*k) : nothing(q, p.dtype)};
  Tensor of_q = problem.result(q, p.output[0]);
  Tensor of_k = k ? problem.result(*k, p.output[1]) : nothing(q, p.dtype);
  if (q.is_cuda()) {
    cuda::Launch launch("rope", q.get_device_index());
    launch.check(rope_cuda[launch.group()](p, launch.stream()));
  } else {
    const int64_t numbers = (p.input[0].heads + p.input[1].heads) * p.rotation.dim;
    run_on_threads(p.rotation.batch * p.rotation.seq, 2 * numbers * size_of(p.dtype),
                   [&, kernel = rope_cpu[isa()]](int64_t begin, int64_t end) { kernel(p, begin, end); });
  }
  problem.finish();
  return {std::move(of_q), std::move(of_k)};
}

FASTOPS_OP("rope",
           "(Tensor q, Tensor? k, Tensor cos, Tensor sin, Tensor? positions=None, int? rotary_dim=None, "
           "bool interleaved=False, int seq_dim=-2, bool adjoint=False) -> (Tensor, Tensor)",
           rope);

}  // namespace ops
}  // namespace fastops
