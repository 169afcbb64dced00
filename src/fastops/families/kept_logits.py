"""Logits that a forward kept: whether a backward may write their gradients in their place.

Whoever comes after finds no logits. So it is done where the graph is freed by this backward, and nobody else has them:
no hooks that saw what was saved, no transform, no trace. Each backward takes the logits for itself while it runs. One
that finds them taken, by another thread or by a backward that failed half-way, has them multiplied again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._operator import KERNEL_DTYPES, Operator

LOGITS = 5  # of what is saved: input, linear_weight, target, lse, and one statistic more come first

_compiling = torch.compiler.is_dynamo_compiling
_functorch_active = torch._C._are_functorch_transforms_active
_batched = torch._C._functorch.is_legacy_batchedtensor


def save(ctx: Any, *tensors: Tensor | None) -> None:
    """As ``ctx.save_for_backward``; the logits are number ``LOGITS``."""
    hooked = _compiling() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    ctx.free = None if hooked else [True]  # what is popped is taken; a list's pop is atomic
    ctx.save_for_backward(*tensors)


def run_backward(
    ctx: Any, operator: Operator, kernel: Callable[..., Any], *grads: Tensor | None, others: tuple[Any, ...] = ()
) -> tuple[Tensor | None, ...]:
    """The gradients of input, linear_weight and linear_bias, None where not needed.

    By the operator, whose arguments are ``grads``, what was saved, ``ctx.options``, what is needed, ``ctx.width`` and
    ``others``; or by its kernel, which may overwrite the logits.
    """
    needs = (*ctx.needs_input_grad[:2], ctx.needs_input_grad[3])
    saved = list(ctx.saved_tensors)  # once: a checkpoint makes them again for each look
    logits = saved[LOGITS]
    taken = _take(ctx)
    if taken is False:
        saved[LOGITS] = logits.new_empty(logits.shape[0], 0)
    arguments = (*grads, *saved, *ctx.options, *needs, ctx.width, *others)
    overwrite = taken and _is_plain(logits, grads) and not torch._C._autograd._get_current_graph_task_keep_graph()
    try:
        found = kernel(*arguments, overwrite=True) if overwrite else operator.call(*arguments)
    finally:
        if taken and not overwrite:
            ctx.free.append(True)
    return tuple(x if needed else None for x, needed in zip(found, needs, strict=True))


def _take(ctx: Any) -> bool | None:
    """Whether this backward has the logits for itself now; None where none ever has."""
    if ctx.free is None or _compiling():
        return None
    try:
        return bool(ctx.free.pop())
    except IndexError:
        return False


def _is_plain(logits: Tensor, grads: tuple[Tensor | None, ...]) -> bool:
    if type(logits) is not Tensor or not logits.numel() or torch.is_grad_enabled() or _functorch_active():
        return False
    if torch._C._len_torch_dispatch_stack():  # a dispatch mode sees the operator, whose FLOPs have a formula
        return False
    given = [g for g in grads if g is not None]
    return all(type(g) is Tensor and g.dtype in KERNEL_DTYPES and not _batched(g) for g in given)
