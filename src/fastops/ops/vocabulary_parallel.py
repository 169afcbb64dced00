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
from ..families.kept_logits import run_backward, save
from ..families.likelihood import NONE, check_classes, statistics_dtype
from ..families.linear_operands import flat, shaped, statistics_of
from ..families.shard import Shard, added, check_first_derivative, gathered
from .likelihood_partial import NUMBERS, cross_entropy_merge, likelihood_partial, linear_likelihood_partial

Triple = tuple[Tensor, Tensor, Tensor]


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
        first_class, classes = shard.first_class, shard.classes
        check_classes("cross_entropy", target, ignore_index, classes)
        dim = 1 if input.dim() > 1 else 0
        of_part = (weight, ignore_index, label_smoothing, scale, softcap)
        if shard.has_room(input.shape[dim]):
            part = likelihood_partial(input, target, dim, first_class, classes, *of_part)
        else:
            part = input.new_zeros((*target.shape, NUMBERS), dtype=statistics_dtype(input))
        w = None if weight is None else wide(weight)
        parts = gathered("cross_entropy", part, input.shape[dim], shard)
        loss, lse, total = cross_entropy_merge(parts, target, classes, w, *options, dtype)
        ctx.options, ctx.shard = options, shard
        ctx.save_for_backward(input, target, lse, total, weight)
        ctx.mark_non_differentiable(total)
        return loss, lse, total

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_lse: Tensor, _: Tensor) -> Any:
        check_first_derivative("cross_entropy")
        first_class, classes = ctx.shard.first_class, ctx.shard.classes
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
        first_class, classes = shard.first_class, shard.classes
        check_classes("linear_cross_entropy", target, ignore_index, classes)
        of_part = (ignore_index, label_smoothing, scale, softcap, False, product, width, kept)
        if shard.has_room(linear_weight.shape[0]):
            part, logits = linear_likelihood_partial(
                input, linear_weight, target, linear_bias, weight, first_class, classes, *of_part
            )
        else:
            part = input.new_zeros((target.numel(), NUMBERS), dtype=statistics_of(input, product))
            logits = input.new_empty(target.numel(), 0)
        w = None if weight is None else wide(weight)
        parts = gathered("linear_cross_entropy", part, linear_weight.shape[0], shard)
        loss, lse, total = cross_entropy_merge(parts, flat(target), classes, w, *options, dtype)
        ctx.options, ctx.input_dtype = (*options, product), input.dtype
        ctx.width, ctx.shard, ctx.derivative = width, shard, (operator, kernel)
        save(ctx, input, linear_weight, target, lse, total, logits, linear_bias, weight)
        return shaped(loss, target) if reduction == NONE else loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        check_first_derivative("linear_cross_entropy")
        first_class, classes = ctx.shard.first_class, ctx.shard.classes
        sums = torch.promote_types(ctx.input_dtype, torch.float32)
        of_input, of_weight, of_bias = run_backward(ctx, *ctx.derivative, grad, others=(first_class, classes, sums))
        if of_input is not None:
            of_input = (added(of_input, ctx.shard) if ctx.shard.adds_up else of_input).to(ctx.input_dtype)
        return of_input, of_weight, None, of_bias, *(None,) * 9
