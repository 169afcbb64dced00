// lltm: the pointwise cell behind the GEMM of the gates
#include "core/rows_edge.h"
#include "kernels/lltm.h"

namespace fastops {

FASTOPS_CPU_KERNEL(lltm_cell, LltmCellCpu);
FASTOPS_CPU_KERNEL(lltm_cell_backward, LltmCellBackwardCpu);
FASTOPS_CUDA_KERNEL(lltm_cell, LltmCellCuda);
FASTOPS_CUDA_KERNEL(lltm_cell_backward, LltmCellBackwardCuda);
FASTOPS_CUDA_KERNEL(lltm_cell_backward_chunks, LltmCellChunksCuda);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

static void check(const char* op, const Tensor& gates, const Tensor& bias, const Tensor& old_cell) {
  check_same_kind(op, "old_cell", old_cell, "gates", gates);
  FASTOPS_CHECK(old_cell.dim() == 2 && gates.dim() == 2 && gates.size(0) == old_cell.size(0) &&
                    gates.size(1) == 3 * old_cell.size(1),
                op, "gates must have shape [batch, 3·state] for old_cell [batch, state], got ", text_of(gates.sizes()),
                " for ", text_of(old_cell.sizes()));
  check_same_kind(op, "bias", bias, "gates", gates);
  FASTOPS_CHECK(bias.dim() == 1 && bias.size(0) == gates.size(1), op, "bias must have shape [", gates.size(1),
                "], got ", text_of(bias.sizes()));
}

Pair lltm_cell(const Tensor& gates, const Tensor& bias, const Tensor& old_cell) {
  if (!kernels_take(gates)) return call<Pair>("fastops::lltm_cell_reference", gates, bias, old_cell);
  check("lltm_cell", gates, bias, old_cell);
  const DType dtype = *dtype_of(gates);
  Shape cell = old_cell.sizes();
  Tensor new_h = allocate(cell, gates, dtype), new_cell = allocate(cell, gates, dtype);
  if (old_cell.numel() == 0) return {std::move(new_h), std::move(new_cell)};
  const Contiguous g(gates), b(bias), c(old_cell);
  const LltmCell a{
      dtype, cell[0], cell[1], g.data(), b.data(), c.data(), new_h.mutable_data_ptr(), new_cell.mutable_data_ptr()};
  if (gates.is_cuda()) {
    cuda::Launch launch("lltm_cell", gates.get_device_index());
    launch.check(lltm_cell_cuda[launch.group()](a, launch.stream()));
  } else {
    LltmCellCpu* kernel = lltm_cell_cpu[isa()];
    run_on_threads(a.rows, 4 * a.n * size_of(dtype), [&](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
  return {std::move(new_h), std::move(new_cell)};
}

// The bias gradient is empty if not asked for.
Triple lltm_cell_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& gates, const Tensor& bias,
                          const Tensor& old_cell, bool need_bias) {
  if (!kernels_take(gates))
    return call<Triple>("fastops::lltm_cell_backward_reference", grad_h, grad_cell, gates, bias, old_cell, need_bias);
  const char* op = "lltm_cell_backward";
  check(op, gates, bias, old_cell);
  check_alike(op, "grad_h", grad_h, "old_cell", old_cell);
  check_alike(op, "grad_cell", grad_cell, "old_cell", old_cell);
  const DType dtype = *dtype_of(gates);
  Shape cell = old_cell.sizes();
  Tensor grad_gates = allocate(gates.sizes(), gates, dtype), grad_old_cell = allocate(cell, gates, dtype);
  Tensor grad_bias = need_bias ? allocate(bias.sizes(), gates, dtype) : nothing(gates, dtype);
  if (old_cell.numel() == 0) {
    if (need_bias) fill_zero(grad_bias);
    return {std::move(grad_gates), std::move(grad_bias), std::move(grad_old_cell)};
  }
  const Contiguous h(grad_h), c(grad_cell), g(gates), b(bias), old(old_cell);
  LltmCellBackward a{dtype,
                     cell[0],
                     cell[1],
                     h.data(),
                     c.data(),
                     g.data(),
                     b.data(),
                     old.data(),
                     grad_gates.mutable_data_ptr(),
                     grad_old_cell.mutable_data_ptr(),
                     need_bias ? grad_bias.mutable_data_ptr() : nullptr,
                     nullptr,
                     0};
  run_with_bias_sum(op, gates, a, 3 * a.n, dtype, 4 * a.n * size_of(accumulate_type(dtype)), lltm_cell_backward_cpu,
                    lltm_cell_backward_cuda, lltm_cell_backward_chunks_cuda);
  return {std::move(grad_gates), std::move(grad_bias), std::move(grad_old_cell)};
}

FASTOPS_OP("lltm_cell", "(Tensor gates, Tensor bias, Tensor old_cell) -> (Tensor, Tensor)", lltm_cell);
FASTOPS_OP("lltm_cell_backward",
           "(Tensor grad_h, Tensor grad_cell, Tensor gates, Tensor bias, Tensor old_cell, bool need_bias) -> (Tensor, "
           "Tensor, Tensor)",
           lltm_cell_backward);

}  // namespace ops
}  // namespace fastops
