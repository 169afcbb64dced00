"""reglu: the gate where it is above 0, times up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from ..families.gated import Three, Unit, gated_arguments, gated_operator


def _slope(gate: Tensor) -> Tensor:
    return torch.where(gate <= 0, 0.0, torch.ones_like(gate))


UNIT = Unit("reglu", torch.relu, _slope)


def reglu_reference(
    gate: Tensor,
    up: Tensor | None = None,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    return UNIT.reference(gate, up, dim, interleaved, limit, offset, row_scale)


def reglu_backward_reference(
    grad: Tensor,
    gate: Tensor,
    up: Tensor | None,
    dim: int,
    interleaved: bool,
    limit: float | None,
    offset: float,
    row_scale: Tensor | None,
    needs_scale: bool,
) -> Three:
    return UNIT.backward_reference(grad, gate, up, dim, interleaved, limit, offset, row_scale, needs_scale)


_op = gated_operator(UNIT, reglu_reference, reglu_backward_reference)


def reglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    r"""Gated linear unit of ReLU (Shazeer 2020, arXiv:2002.05202).

    .. math:: y = s\,a(g)\,(u + o), \qquad a(g) = \max(g, 0)

    All else is as in :func:`fastops.swiglu`, with :math:`a'(g) = 1` where :math:`g > 0`, else 0.

    Args:
        gate, up, dim, interleaved, limit, offset, row_scale: as in :func:`fastops.swiglu`.

    Returns:
        A new tensor of ``gate``'s shape, along ``dim`` half as long without ``up``.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError: as :func:`fastops.swiglu`.
    """
    if has_torch_function_variadic(gate, up, row_scale):
        return handle_torch_function(
            reglu,
            (gate, up, row_scale),
            gate,
            up,
            dim=dim,
            interleaved=interleaved,
            limit=limit,
            offset=offset,
            row_scale=row_scale,
        )
    return _op.call(*gated_arguments(UNIT, gate, up, dim, interleaved, limit, offset, row_scale))
