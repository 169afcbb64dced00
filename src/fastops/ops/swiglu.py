"""swiglu: the gate times its sigmoid, times up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_numbers
from ..families.gated import Three, Unit, gated_arguments, gated_operator


def _silu(gate: Tensor, alpha: float) -> Tensor:
    return gate * torch.sigmoid(alpha * gate)


def _slope(gate: Tensor, alpha: float) -> Tensor:
    s = torch.sigmoid(alpha * gate)
    return s * (1 + alpha * gate * torch.sigmoid(-alpha * gate))


UNIT = Unit("swiglu", _silu, _slope, options=(1.0,))


def swiglu_reference(
    gate: Tensor,
    up: Tensor | None = None,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
    alpha: float = 1.0,
) -> Tensor:
    return UNIT.reference(gate, up, dim, interleaved, limit, offset, row_scale, alpha)


def swiglu_backward_reference(
    grad: Tensor,
    gate: Tensor,
    up: Tensor | None,
    dim: int,
    interleaved: bool,
    limit: float | None,
    offset: float,
    row_scale: Tensor | None,
    alpha: float,
    needs_scale: bool,
) -> Three:
    return UNIT.backward_reference(grad, gate, up, dim, interleaved, limit, offset, row_scale, alpha, needs_scale)


_op = gated_operator(UNIT, swiglu_reference, swiglu_backward_reference)


def swiglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    dim: int = -1,
    interleaved: bool = False,
    limit: float | None = None,
    alpha: float = 1.0,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    r"""Gated linear unit of SiLU (Shazeer 2020, arXiv:2002.05202).

    .. math:: y = s\,a(g)\,(u + o), \qquad a(g) = g\,\sigma(\alpha g)

    with :math:`g` from ``gate``, at most ``limit``, and :math:`u` from ``up``, within ``limit`` on both sides. With
    :math:`a'(g) = \sigma(\alpha g)\,(1 + \alpha g\,(1 - \sigma(\alpha g)))`,

    .. math:: \frac{\partial L}{\partial g} = s\,(u + o)\,a'(g)\,\frac{\partial L}{\partial y}, \quad
              \frac{\partial L}{\partial u} = s\,a(g)\,\frac{\partial L}{\partial y}, \quad
              \frac{\partial L}{\partial s} = \sum_{row} a(g)\,(u + o)\,\frac{\partial L}{\partial y}

    The first two are 0 where a number is beyond ``limit``, not where it is ``limit``.
    Of the half types it is computed in float32 and rounded once. The backward keeps ``gate`` and ``up`` alone.

    Args:
        gate: any shape and strides; without ``up`` it has both, the gate in the first half along ``dim``. float16,
            bfloat16, float32 and float64 on CPU and CUDA run our kernels; other dtypes and devices the plain
            composition.
        up: ``gate``'s shape and device. Different dtypes are promoted as in ``gate * up``.
        dim: along which ``gate`` has both.
        interleaved: ``gate`` has gate and up by turns along ``dim``, and not in halves.
        limit: at least 0; 7.0 in gpt-oss. None: no bound.
        alpha: :math:`\alpha`; 1.702 makes :math:`a` what is near gelu.
        offset: :math:`o`, added to the bounded up; 1.0 in gpt-oss.
        row_scale: :math:`s`, a number for each row of the last dimension, of any floating dtype: ``gate``'s shape
            without it. None: 1. It needs ``dim=-1``, on CUDA rows of at most 2³⁰ numbers.

    Returns:
        A new tensor of ``gate``'s shape, along ``dim`` half as long without ``up``.

    Raises:
        IndexError: ``gate`` has no dimension ``dim``.
        RuntimeError: shapes or devices that do not fit, an odd size along ``dim``, what is not floating point.
        TypeError: an argument of another type.
        ValueError: a negative ``limit``.

    Example::

        >>> fastops.swiglu(torch.randn(4, 2 * 11008)).shape
        torch.Size([4, 11008])
    """
    if has_torch_function_variadic(gate, up, row_scale):
        return handle_torch_function(
            swiglu,
            (gate, up, row_scale),
            gate,
            up,
            dim=dim,
            interleaved=interleaved,
            limit=limit,
            alpha=alpha,
            offset=offset,
            row_scale=row_scale,
        )
    if type(alpha) is not float:
        check_numbers("swiglu", alpha=alpha)
    return _op.call(*gated_arguments(UNIT, gate, up, dim, interleaved, limit, offset, row_scale, alpha))
