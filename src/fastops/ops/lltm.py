"""lltm: the recurrent cell of PyTorch's C++ extension tutorial; GEMM by torch, the pointwise cell by one kernel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_tensors
from .._autocast import lower_precision
from .._derivative import unused_as_none
from .._operator import Operator, sum_of_rows, wide
from ..sharding import rows

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def _cell_of(gates: Tensor, old_cell: Tensor) -> Pair:
    g0, g1, g2 = gates.chunk(3, dim=-1)
    new_cell = wide(old_cell) + F.elu(g2) * torch.sigmoid(g0)
    return torch.tanh(new_cell) * torch.sigmoid(g1), new_cell


def _cell_gradients(grad_h: Tensor, grad_cell: Tensor, gates: Tensor, old_cell: Tensor) -> Pair:
    """For gates and old_cell."""
    g0, g1, g2 = gates.chunk(3, dim=-1)
    grad_h, grad_cell = wide(grad_h), wide(grad_cell)
    gate_in, gate_out, candidate = torch.sigmoid(g0), torch.sigmoid(g1), F.elu(g2)
    t = torch.tanh(wide(old_cell) + candidate * gate_in)
    d_cell = grad_cell + grad_h * gate_out * (1 - t * t)
    d_in = d_cell * candidate * gate_in * (1 - gate_in)
    d_out = grad_h * t * gate_out * (1 - gate_out)
    d_candidate = d_cell * gate_in * torch.where(g2 > 0, 1, candidate + 1)
    return torch.cat([d_in, d_out, d_candidate], -1), d_cell


def lltm_cell_reference(gates: Tensor, bias: Tensor, old_cell: Tensor) -> Pair:
    # Results are contiguous, as the kernels' are.
    new_h, new_cell = _cell_of(wide(gates) + bias, old_cell.contiguous())
    return new_h.to(gates.dtype), new_cell.to(gates.dtype)


def lltm_cell_backward_reference(
    grad_h: Tensor, grad_cell: Tensor, gates: Tensor, bias: Tensor, old_cell: Tensor, need_bias: bool
) -> Triple:
    d_gates, d_cell = _cell_gradients(grad_h, grad_cell, wide(gates) + bias, old_cell)
    d_bias = sum_of_rows(d_gates) if need_bias else d_gates.new_empty(0)
    return d_gates.to(gates.dtype), d_bias.to(gates.dtype), d_cell.to(gates.dtype)


def _fake(gates: Tensor, bias: Tensor, old_cell: Tensor) -> Pair:
    return gates.new_empty(old_cell.shape), gates.new_empty(old_cell.shape)


def _fake_backward(
    grad_h: Tensor, grad_cell: Tensor, gates: Tensor, bias: Tensor, old_cell: Tensor, need_bias: bool
) -> Triple:
    grad_bias = gates.new_empty(bias.shape if need_bias else 0)
    return gates.new_empty(gates.shape), grad_bias, gates.new_empty(old_cell.shape)


_backward_op = Operator(
    "lltm_cell_backward",
    lltm_cell_backward_reference,
    _fake_backward,
    outputs=3,
    sharding=rows(lambda call: 1, whole=("bias",), sums=(1,)),
)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    unused_as_none(ctx)
    ctx.save_for_backward(*inputs)


def _both(grad_h: Tensor | None, grad_cell: Tensor | None) -> tuple[Tensor, Tensor] | None:
    if grad_h is None:
        return None if grad_cell is None else (torch.zeros_like(grad_cell), grad_cell)
    return grad_h, torch.zeros_like(grad_h) if grad_cell is None else grad_cell


def _backward(ctx: Any, *given: Tensor | None) -> Any:
    grads = _both(*given)
    if grads is None:
        return None, None, None
    need_bias = ctx.needs_input_grad[1]
    grad_gates, grad_bias, grad_old_cell = _backward_op.call(*grads, *ctx.saved_tensors, need_bias)
    return grad_gates, grad_bias if need_bias else None, grad_old_cell


_cell = Operator(
    "lltm_cell",
    lltm_cell_reference,
    _fake,
    save=_save,
    backward=_backward,
    outputs=2,
    sharding=rows(lambda call: 1, whole=("bias",)),
)


def lltm(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> Pair:
    r"""One step of the long long-term memory cell: an LSTM without forget gate, with an ELU.

    .. math:: X = [h, x], \quad (g_0, g_1, g_2) = X W^\top + b, \quad
              c' = c + \mathrm{elu}(g_2)\,\sigma(g_0), \quad h' = \tanh(c')\,\sigma(g_1)

    torch multiplies the matrices; bias and cell are one kernel of ours forward, and backward one that makes the gates'
    activations again from the product.

    Args:
        input: :math:`x`, ``[batch, features]``.
        weights: :math:`W`, ``[3 * state, state + features]``, the rows of :math:`g_0, g_1, g_2` in turn.
        bias: :math:`b`, ``[3 * state]`` or ``[1, 3 * state]``.
        old_h: :math:`h`, ``[batch, state]``.
        old_cell: :math:`c`, ``[batch, state]``.

    All of one dtype and device; under autocast all are cast to its dtype, as torch does for its LSTM cell on CUDA.

    Returns:
        ``(new_h, new_cell)``, :math:`h'` and :math:`c'`, each ``[batch, state]``.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit.

    From the tutorial "Custom C++ and CUDA Extensions" (P. Goldsborough), whose CUDA version loses digits in float64.
    """
    if has_torch_function_variadic(input, weights, bias, old_h, old_cell):
        given = input, weights, bias, old_h, old_cell
        return handle_torch_function(lltm, given, *given)
    check_tensors("lltm", input=input, weights=weights, bias=bias, old_h=old_h, old_cell=old_cell)
    input, weights, bias, old_h, old_cell = lower_precision(input, weights, bias, old_h, old_cell)  # type: ignore[assignment]
    _check(input, weights, bias, old_h, old_cell)
    gates = F.linear(torch.cat([old_h, input], 1), weights)
    return _cell.call(gates, bias.reshape(-1), old_cell)


def _check(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> None:
    if not input.is_floating_point():
        raise RuntimeError(f"[lltm] input must be floating point, got {input.dtype}")
    if input.dim() != 2:
        raise RuntimeError(f"[lltm] input must have shape [batch, features], got {list(input.shape)}")
    batch, features = input.shape
    if old_h.dim() != 2 or old_h.shape[0] != batch:
        raise RuntimeError(f"[lltm] old_h must have shape [{batch}, state], got {list(old_h.shape)}")
    state = old_h.shape[1]
    expected = {"weights": (weights, [3 * state, state + features]), "old_cell": (old_cell, [batch, state])}
    for name, (tensor, shape) in expected.items():
        if list(tensor.shape) != shape:
            raise RuntimeError(f"[lltm] {name} must have shape {shape}, got {list(tensor.shape)}")
    if list(bias.shape) not in ([3 * state], [1, 3 * state]):
        raise RuntimeError(f"[lltm] bias must have shape [{3 * state}] or [1, {3 * state}], got {list(bias.shape)}")
    for name, tensor in (("weights", weights), ("bias", bias), ("old_h", old_h), ("old_cell", old_cell)):
        if tensor.dtype != input.dtype:
            raise RuntimeError(f"[lltm] {name} must have input's dtype {input.dtype}, got {tensor.dtype}")
        if tensor.device != input.device:
            raise RuntimeError(f"[lltm] {name} must be on input's device {input.device}, got {tensor.device}")
