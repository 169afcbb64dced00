// lltm: the pointwise cell behind the GEMM of the gates
#include "core/pointwise_edge.h"

namespace fastops {

FASTOPS_POINTWISE(lltm_cell);
FASTOPS_POINTWISE(lltm_cell_backward);

namespace ops {

using Pair = std::tuple<Tensor, Tensor>;

// The k-th third of the columns of `gates`.
static Operand third(const Tensor& gates, void* data, int k, Shape cell) {
  const int64_t offset = k * cell[1] * gates.stride(1) * size_of(*dtype_of(gates));
  return {static_cast<char*>(data) + offset, cell, gates.strides()};
}

static Operand read(const Tensor& t) { return {const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides()}; }
static Operand write(const Tensor& t) { return {t.mutable_data_ptr(), t.sizes(), t.strides()}; }

static void check(const char* op, const Tensor& gates, const Tensor& old_cell) {
  check_same_kind(op, "old_cell", old_cell, "gates", gates);
  FASTOPS_CHECK(old_cell.dim() == 2 && gates.dim() == 2 && gates.size(0) == old_cell.size(0) &&
                    gates.size(1) == 3 * old_cell.size(1),
                op, "gates must have shape [batch, 3·state] for old_cell [batch, state], got ", text_of(gates.sizes()),
                " for ", text_of(old_cell.sizes()));
}

Pair lltm_cell(const Tensor& gates, const Tensor& old_cell) {
  if (!kernels_take(gates)) return call<Pair>("fastops::lltm_cell_reference", gates, old_cell);
  check("lltm_cell", gates, old_cell);
  const DType dtype = *dtype_of(gates);
  Shape cell = old_cell.sizes();
  Tensor new_h = allocate(cell, gates, dtype), new_cell = allocate(cell, gates, dtype);
  void* g = const_cast<void*>(gates.const_data_ptr());
  const Operand operands[] = {
      write(new_h),  write(new_cell), third(gates, g, 0, cell), third(gates, g, 1, cell), third(gates, g, 2, cell),
      read(old_cell)};
  run_pointwise("lltm_cell", lltm_cell_kernels, gates, dtype, operands, 6);
  return {std::move(new_h), std::move(new_cell)};
}

Pair lltm_cell_backward(const Tensor& grad_h, const Tensor& grad_cell, const Tensor& gates, const Tensor& old_cell) {
  if (!kernels_take(gates))
    return call<Pair>("fastops::lltm_cell_backward_reference", grad_h, grad_cell, gates, old_cell);
  check("lltm_cell_backward", gates, old_cell);
  check_alike("lltm_cell_backward", "grad_h", grad_h, "old_cell", old_cell);
  check_alike("lltm_cell_backward", "grad_cell", grad_cell, "old_cell", old_cell);
  const DType dtype = *dtype_of(gates);
  Shape cell = old_cell.sizes();
  Tensor grad_gates = allocate(gates.sizes(), gates, dtype), grad_old_cell = allocate(cell, gates, dtype);
  void *g = const_cast<void*>(gates.const_data_ptr()), *d = grad_gates.mutable_data_ptr();
  const Operand operands[] = {third(grad_gates, d, 0, cell),
                              third(grad_gates, d, 1, cell),
                              third(grad_gates, d, 2, cell),
                              write(grad_old_cell),
                              read(grad_h),
                              read(grad_cell),
                              third(gates, g, 0, cell),
                              third(gates, g, 1, cell),
                              third(gates, g, 2, cell),
                              read(old_cell)};
  run_pointwise("lltm_cell_backward", lltm_cell_backward_kernels, gates, dtype, operands, 10);
  return {std::move(grad_gates), std::move(grad_old_cell)};
}

FASTOPS_OP("lltm_cell", "(Tensor gates, Tensor old_cell) -> (Tensor, Tensor)", lltm_cell);
FASTOPS_OP("lltm_cell_backward", "(Tensor grad_h, Tensor grad_cell, Tensor gates, Tensor old_cell) -> (Tensor, Tensor)",
           lltm_cell_backward);

}  // namespace ops
}  // namespace fastops
