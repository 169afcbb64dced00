"""geglu: the gate times the normal distribution function of it, times up."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import type_error
from ..families.gated import Three, Unit, gated_arguments, gated_operator


def _gelu(gate: Tensor, approximate: str) -> Tensor:
    # Neither by 1 + tanh nor by 1 + erf, which have no digits of a small result.
    return gate * (torch.sigmoid(_twice(gate)) if approximate == "tanh" else _cdf(gate))


def _cdf(gate: Tensor) -> Tensor:
    return 0.5 * torch.erfc(gate * -math.sqrt(0.5))


def _bounded(gate: Tensor) -> Tensor:
    """Where its powers are finite: that of a large gate would be NaN times the 0 that is left of the distribution."""
    return gate.clamp(-1000.0, 1000.0)


def _twice(gate: Tensor) -> Tensor:
    gate = _bounded(gate)
    return math.sqrt(8 / math.pi) * (gate + 0.044715 * gate**3)


def _slope(gate: Tensor, approximate: str) -> Tensor:
    if approximate == "tanh":
        z = _twice(gate)
        s = torch.sigmoid(z)
        return s + gate * s * torch.sigmoid(-z) * (math.sqrt(8 / math.pi) * (1 + 3 * 0.044715 * _bounded(gate) ** 2))
    return _cdf(gate) + gate * torch.exp(-0.5 * gate**2) * (1 / math.sqrt(2 * math.pi))


def _torchs(gate: Tensor, approximate: str) -> Tensor:
    return F.gelu(gate, approximate=approximate)


UNIT = Unit("geglu", _gelu, _slope, options=("none",), torchs=_torchs)


def geglu_reference(
    gate: Tensor,
    up: Tensor | None = None,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
    approximate: str = "none",
) -> Tensor:
    return UNIT.reference(gate, up, dim, interleaved, limit, offset, row_scale, approximate)


def geglu_backward_reference(
    grad: Tensor,
    gate: Tensor,
    up: Tensor | None,
    dim: int,
    interleaved: bool,
    limit: float | None,
    offset: float,
    row_scale: Tensor | None,
    approximate: str,
    needs_scale: bool,
) -> Three:
    return UNIT.backward_reference(grad, gate, up, dim, interleaved, limit, offset, row_scale, approximate, needs_scale)


_op = gated_operator(UNIT, geglu_reference, geglu_backward_reference)


def check_approximate(name: str, approximate: str) -> None:
    if not isinstance(approximate, str):
        raise type_error(name, "approximate", "a str", approximate)
    if approximate not in ("none", "tanh"):
        raise ValueError(f"[{name}] approximate must be 'none' or 'tanh', got '{approximate}'")


def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    approximate: str = "none",
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    r"""Gated linear unit of GELU (Shazeer 2020, arXiv:2002.05202).

    .. math:: y = s\,a(g)\,(u + o), \qquad a(g) = g\,\Phi(g)

    by the normal distribution function :math:`\Phi`, or with ``approximate="tanh"`` :math:`a(g) = g\,\sigma(2 z)`,
    :math:`z = \sqrt{2 / \pi}\,(g + 0.044715\,g^3)`, as :func:`torch.nn.functional.gelu` has both. All else is as in
    :func:`fastops.swiglu`, with :math:`a'(g) = \Phi(g) + g\,\Phi'(g)`.

    Args:
        gate, up, dim, interleaved, limit, offset, row_scale: as in :func:`fastops.swiglu`.
        approximate: ``"none"`` or ``"tanh"``.

    Returns:
        A new tensor of ``gate``'s shape, along ``dim`` half as long without ``up``.

    Raises:
        IndexError, RuntimeError, TypeError, ValueError: as :func:`fastops.swiglu`; ValueError for another
            ``approximate``.
    """
    if has_torch_function_variadic(gate, up, row_scale):
        return handle_torch_function(
            geglu,
            (gate, up, row_scale),
            gate,
            up,
            approximate=approximate,
            dim=dim,
            interleaved=interleaved,
            limit=limit,
            offset=offset,
            row_scale=row_scale,
        )
    check_approximate("geglu", approximate)
    return _op.call(*gated_arguments(UNIT, gate, up, dim, interleaved, limit, offset, row_scale, approximate))
