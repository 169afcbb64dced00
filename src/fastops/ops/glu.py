"""glu: the gate's sigmoid, times the input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..families.gated import Three, Unit, gated_arguments, gated_operator


def _slope(gate: Tensor) -> Tensor:
    return torch.sigmoid(gate) * torch.sigmoid(-gate)


UNIT = Unit("glu", torch.sigmoid, _slope, "input", "gate", up_first=True)


def glu_reference(
    input: Tensor,
    gate: Tensor | None = None,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    return UNIT.reference(input, gate, dim, interleaved, limit, offset, row_scale)


def glu_backward_reference(
    grad: Tensor,
    input: Tensor,
    gate: Tensor | None,
    dim: int,
    interleaved: bool,
    limit: float | None,
    offset: float,
    row_scale: Tensor | None,
    needs_scale: bool,
) -> Three:
    return UNIT.backward_reference(grad, input, gate, dim, interleaved, limit, offset, row_scale, needs_scale)


_op = gated_operator(UNIT, glu_reference, glu_backward_reference)


def glu(
    input: Tensor,
    dim: int = -1,
    *,
    gate: Tensor | None = None,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    r"""Gated linear unit (Dauphin et al. 2016, arXiv:1612.08083).

    .. math:: y = s\,\sigma(g)\,(u + o)

    with :math:`u` from ``input``, within ``limit`` on both sides, and :math:`g` from ``gate``, at most ``limit``. All
    else is as in :func:`fastops.swiglu`; but the gate comes second, as in :func:`torch.nn.functional.glu`, which this
    is without the other arguments.

    Args:
        input: any shape and strides; without ``gate`` it has both, what is gated in the first half along ``dim``, the
            gate in the second.
        dim: along which ``input`` has both.
        gate: ``input``'s shape and device.
        interleaved: ``input`` has both by turns along ``dim``, what is gated first, and not in halves.
        limit, offset, row_scale: as in :func:`fastops.swiglu`.

    Returns:
        A new tensor of ``input``'s shape, along ``dim`` half as long without ``gate``.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError: as :func:`fastops.swiglu`.
    """
    if has_torch_function_variadic(input, gate, row_scale):
        return handle_torch_function(
            glu,
            (input, gate, row_scale),
            input,
            dim,
            gate=gate,
            interleaved=interleaved,
            limit=limit,
            offset=offset,
            row_scale=row_scale,
        )
    return _op.call(*gated_arguments(UNIT, input, gate, dim, interleaved, limit, offset, row_scale))
