"""Losses whose classes are shared out among processes: one all-gather of four numbers a row, and none in the backward.

A process has the logits, or the linear layer, of its own classes. Its part of each row is likelihood_partial's; all
processes merge all parts in their order, and so have the same results, bit for bit. The gradient of a process's logits
needs nothing of the others but lse. Only the gradient of hidden states, which all processes have, is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from .._operator import Operator, wide
from ..families.likelihood import check_targets
from ..families.linear_likelihood import are_hooked, derivative, flat
from ..families.shard import Shard, added, check_first_derivative, gathered
from .likelihood_partial import cross_entropy_merge, likelihood_partial, linear_likelihood_partial

Triple = tuple[Tensor, Tensor, Tensor]


def _check(op: str, target: Tensor, ignore_index: int, classes: int) -> None:
    y = target.long()
    check_targets(op, y, y != ignore_index, (y >= 0) & (y < classes), classes, ignore_index)


class CrossEntropyOfShard(Function):
    """loss, lse and what mean divides by.

    ``options``: reduction, ignore_index, label_smoothing, scale, softcap, z_loss.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None,
        options: tuple[Any, ...],
        dtype: torch.dtype,
        shard: Shard,
    ) -> Triple:
        _, ignore_index, label_smoothing, scale, softcap, _ = options
        _, first_class, classes = shard
        _check("cross_entropy", target, ignore_index, classes)
        dim = 1 if input.dim() > 1 else 0
        of_part = (weight, ignore_index, label_smoothing, scale, softcap)
        part = likelihood_partial(input, target, dim, first_class, classes, *of_part)
        w = None if weight is None else wide(weight)
        loss, lse, total = cross_entropy_merge(gathered(part, shard), target, classes, w, *options, dtype)
        ctx.options, ctx.shard = options, shard
        ctx.save_for_backward(input, target, lse, total, weight)
        ctx.mark_non_differentiable(total)
        return loss, lse, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_lse: Tensor, _: Tensor) -> Any:
        check_first_derivative("cross_entropy")
        _, first_class, classes = ctx.shard
        gradient = torch.ops.fastops.cross_entropy_backward(
            grad, grad_lse, *ctx.saved_tensors, *ctx.options, first_class, classes
        )
        return (gradient, *(None,) * 5)


class LinearCrossEntropyOfShard(Function):
    """The loss. ``operator`` and ``kernel``: linear_cross_entropy's derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        linear_weight: Tensor,
        target: Tensor,
        linear_bias: Tensor | None,
        weight: Tensor | None,
        options: tuple[Any, ...],
        dtype: torch.dtype,
        product: torch.dtype | None,
        width: int,
        kept: int,
        shard: Shard,
        operator: Operator,
        kernel: Callable[..., Any],
    ) -> Tensor:
        reduction, ignore_index, label_smoothing, scale, softcap, _ = options
        _, first_class, classes = shard
        _check("linear_cross_entropy", target, ignore_index, classes)
        of_part = (ignore_index, label_smoothing, scale, softcap, False, product, width, kept)
        part, logits = linear_likelihood_partial(
            input, linear_weight, target, linear_bias, weight, first_class, classes, *of_part
        )
        w = None if weight is None else wide(weight)
        loss, lse, total = cross_entropy_merge(gathered(part, shard), flat(target), classes, w, *options, dtype)
        ctx.arguments = (*options, product)
        ctx.width, ctx.shard, ctx.operator, ctx.kernel = width, shard, operator, kernel
        ctx.hooked = are_hooked()
        ctx.save_for_backward(input, linear_weight, target, lse, total, logits, linear_bias, weight)
        return loss if reduction else loss.view(target.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        check_first_derivative("linear_cross_entropy")
        need_input, need_weight, _, need_bias = ctx.needs_input_grad[:4]
        _, first_class, classes = ctx.shard
        input, logits = ctx.saved_tensors[0], ctx.saved_tensors[5]
        sums = torch.float64 if input.dtype == torch.float64 else torch.float32
        needs = need_input, need_weight, need_bias
        arguments = (grad, *ctx.saved_tensors, *ctx.arguments, *needs, ctx.width, first_class, classes, sums)
        of_input, of_weight, of_bias = derivative(ctx.operator, ctx.kernel, arguments, logits, ctx.hooked)
        return (
            added(of_input, ctx.shard).to(input.dtype) if need_input else None,
            of_weight if need_weight else None,
            None,
            of_bias if need_bias else None,
            *(None,) * 9,
        )
