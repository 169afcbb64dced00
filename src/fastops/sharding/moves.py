"""Between DTensors and what each process has of them, differentiable any number of times.

torch's own moves are not: in 2.10 and 2.11 their gradients have no history, and up to 2.15 what comes back to a partial
sum's gradient is not added up. A second derivative would lack terms, often without an error.

A move knows two placements: the tensor's, and those of its gradient. On the way back each is in the other's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

Placements = Sequence[Any]  # of torch.distributed.tensor, which this does not import before a DTensor is there


def redistributed(x: Tensor, placements: Placements) -> Tensor:
    """The gradient comes as ``x`` is placed, but whole where that is a partial sum."""
    if list(x.placements) == list(placements):  # type: ignore[attr-defined]
        return x
    return _Redistributed.apply(x, placements)  # type: ignore[no-any-return]


def to_local(x: Tensor, of_gradient: Placements) -> Tensor:
    """Of this process; what it returns as a gradient is taken as so placed."""
    return _ToLocal.apply(x, of_gradient)  # type: ignore[no-any-return]


def from_local(x: Tensor, mesh: Any, placements: Placements, shape: torch.Size, of_gradient: Placements) -> Tensor:
    """``of_gradient``: in which it is brought to come back."""
    return _FromLocal.apply(x, mesh, placements, shape, of_gradient)  # type: ignore[no-any-return]


class _Redistributed(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, placements: Placements) -> Any:
        from torch.distributed.tensor import Replicate

        ctx.set_materialize_grads(False)
        ctx.back = [Replicate() if p.is_partial() else p for p in x.placements]
        return x.redistribute(placements=placements)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None if grad is None else redistributed(grad, ctx.back), None


class _ToLocal(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, of_gradient: Placements) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.back = x.device_mesh, of_gradient, x.shape, x.placements
        local: Tensor = x.to_local()
        return local.view_as(local)  # a result of its own: autograd writes to it

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        return None if grad is None else from_local(grad, *ctx.back), None


class _FromLocal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Any, placements: Placements, shape: torch.Size, of: Placements) -> Any:
        from torch.distributed.tensor import DTensor

        ctx.set_materialize_grads(False)
        ctx.back = of, placements
        return DTensor.from_local(x, mesh, placements, run_check=False, shape=shape, stride=_strides(x, shape))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        came, placements = ctx.back
        return None if grad is None else to_local(redistributed(grad, came), placements), None, None, None, None


def _strides(x: Tensor, shape: torch.Size) -> tuple[int, ...]:
    """Of a whole whose dimensions lie in memory in the order of those of ``x``."""
    found, step = [0] * len(shape), 1
    for d in sorted(range(len(shape)), key=lambda d: (x.stride(d), -d)):
        found[d] = step
        step *= max(shape[d], 1)
    return tuple(found)
