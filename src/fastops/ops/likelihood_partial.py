"""cross_entropy and log_prob of logits of which some of the classes are here: a shard, or a slice of the vocabulary.

What such a part contributes to a row are four numbers in float32, in float64 of float64:

* the largest u; without a softcap the largest logit, the smallest under a scale below 0, with the scale's sign;
* the sum of e^(u - largest u);
* the target's u, without a softcap its logit; 0 where its class is not here;
* with label smoothing the sum of w·u, for an entropy the sum of e^(u - largest u)·(u - largest u), else 0.

Of ignored rows all are 0. ``likelihood_partial`` makes them of logits, ``likelihood_join`` one part of several, and
``cross_entropy_merge`` and ``log_prob_merge`` the results of all classes. Parts are merged in their order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._operator import Operator, wide
from ..families.likelihood import (
    MEAN,
    NONE,
    Triple,
    capped,
    check_target_dtype,
    check_weights,
    reduced,
    statistics_dtype,
    weights_of,
)
from ..families.linear_operands import check_schedule, flat, forward_flops, operand_dtype, plain_logits, statistics_of
from ..families.linear_walk import Linear, composed, parts_of, room_for

NUMBERS = 4


def _check(
    input: Tensor, target: Tensor, dim: int, first_class: int, classes: int, weight: Tensor | None, dtype: torch.dtype
) -> None:
    shape = list(input.shape)
    n = shape.pop(dim)
    if list(target.shape) != shape:
        raise RuntimeError(f"[likelihood_partial] target must have shape {shape}, got {list(target.shape)}")
    check_target_dtype("likelihood_partial", target)
    if not 0 <= first_class <= classes - n:
        raise RuntimeError(
            f"[likelihood_partial] input's {n} classes must be some of {classes}, got first_class {first_class}"
        )
    if weight is not None:
        check_weights("likelihood_partial", weight, classes, dtype)


def likelihood_partial_reference(
    input: Tensor,
    target: Tensor,
    dim: int,
    first_class: int,
    classes: int,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Tensor:
    """The numbers of a part in plain PyTorch, [*target.shape, 4]."""
    _check(input, target, dim, first_class, classes, weight, input.dtype)
    target = target.long()
    kept = target != ignore_index
    z = torch.where(kept.unsqueeze(-1), wide(input.movedim(dim, -1)), 0)
    u, _ = capped(z, scale, softcap)
    if softcap is None:
        ranked, by = (-z, -scale) if scale < 0 else (z, scale)
    else:
        ranked, by = u, 1.0
    largest = ranked.amax(-1)
    d = by * (ranked - torch.where(largest == -torch.inf, 0, largest).unsqueeze(-1))
    e = torch.exp(d)
    column = target - first_class
    here = (column >= 0) & (column < z.shape[-1])
    found = (z if softcap is None else u).gather(-1, torch.where(here, column, 0).unsqueeze(-1)).squeeze(-1)
    other = torch.zeros_like(largest)
    if entropy:
        other = (e * torch.where(e == 0, 0, d)).sum(-1)
    elif label_smoothing:
        w = 1 if weight is None else weight[first_class : first_class + z.shape[-1]].to(u.dtype)
        other = (u * w).sum(-1)
    numbers = torch.stack([largest, e.sum(-1), torch.where(here, found, 0), other], -1)
    return torch.where(kept.unsqueeze(-1), numbers, 0)


def _fake_partial(
    input: Tensor,
    target: Tensor,
    dim: int,
    first_class: int,
    classes: int,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Tensor:
    _check(input, target, dim, first_class, classes, weight, input.dtype)
    return input.new_empty((*target.shape, NUMBERS), dtype=statistics_dtype(input))


def likelihood_join_reference(
    parts: Tensor, scale: float = 1.0, softcap: float | None = None, entropy: bool = False
) -> Tensor:
    """One part of several, [count, *, 4], in plain PyTorch."""
    largest, total, found, other = parts.unbind(-1)
    most = largest.amax(0)
    d = (1.0 if softcap is not None else abs(scale)) * (largest - torch.where(most == -torch.inf, 0, most))
    e = torch.exp(d)
    if entropy:
        other = torch.where(e == 0, 0, e * (other + total * torch.where(e == 0, 0, d)))
    return torch.stack([most, (e * total).sum(0), found.sum(0), other.sum(0)], -1)


def _statistics(parts: Tensor, scale: float, softcap: float | None, entropy: bool) -> tuple[Tensor, ...]:
    """Of the whole: lse, lse - u of the target, the fourth number, and the second's logarithm."""
    largest, total, found, other = likelihood_join_reference(parts, scale, softcap, entropy).unbind(-1)
    by = 1.0 if softcap is not None else scale
    u = abs(by) * largest
    log_sum = torch.log(total)
    return u + log_sum, log_sum - (by * found - u), other / total if entropy else other, log_sum


def _kept(target: Tensor, ignore_index: int, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that count, a class for each, and 1 or NaN where it is none."""
    target = target.long()
    kept = target != ignore_index
    in_range = (target >= 0) & (target < classes)
    return kept, torch.where(kept & in_range, target, 0), torch.where(in_range | ~kept, 1.0, torch.nan)


def cross_entropy_merge_reference(
    parts: Tensor,
    target: Tensor,
    classes: int,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Triple:
    """What cross_entropy returns, of parts, [count, *, 4], in plain PyTorch."""
    kept, y, valid = _kept(target, ignore_index, classes)
    lse, loss, other, _ = _statistics(parts, scale, softcap, False)
    w, row_weight, weight_sum = weights_of(weight, kept, y, lse, classes)
    loss = valid.to(loss.dtype) * (loss if w is None else row_weight * loss)
    if label_smoothing:
        loss = (1 - label_smoothing) * loss + label_smoothing / classes * (lse * weight_sum - other)
    return reduced(loss, lse, kept, row_weight, reduction, z_loss, dtype or parts.dtype)


def log_prob_merge_reference(
    parts: Tensor,
    target: Tensor,
    classes: int,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Triple:
    """What log_prob returns, of parts, [count, *, 4], in plain PyTorch."""
    kept, _, valid = _kept(target, ignore_index, classes)
    lse, loss, other, log_sum = _statistics(parts, scale, softcap, entropy)
    spread = torch.where(kept, log_sum - other, 0) if entropy else lse.new_empty(0)
    return torch.where(kept, -valid.to(loss.dtype) * loss, 0), spread, torch.where(kept, lse, 0)


def _fake_cross_entropy(
    parts: Tensor,
    target: Tensor,
    classes: int,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Triple:
    return (
        parts.new_empty(target.shape if reduction == NONE else (), dtype=dtype),
        parts.new_empty(target.shape),
        parts.new_empty(() if reduction == MEAN else 0),
    )


def _fake_log_prob(
    parts: Tensor,
    target: Tensor,
    classes: int,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Triple:
    return parts.new_empty(target.shape), parts.new_empty(target.shape if entropy else 0), parts.new_empty(target.shape)


likelihood_partial = Operator("likelihood_partial", likelihood_partial_reference, _fake_partial).raw
likelihood_join = Operator(
    "likelihood_join", likelihood_join_reference, lambda parts, *options: parts.new_empty(parts.shape[1:])
).raw
cross_entropy_merge = Operator("cross_entropy_merge", cross_entropy_merge_reference, _fake_cross_entropy).raw
log_prob_merge = Operator("log_prob_merge", log_prob_merge_reference, _fake_log_prob).raw


def linear_parts(
    linear: Linear,
    target: Tensor,
    first_class: int,
    classes: int,
    weight: Tensor | None,
    options: tuple[Any, ...],
    kept: int,
) -> tuple[Tensor, Tensor]:
    """The parts of a linear layer's logits, [count, rows, 4], and the logits that are kept."""

    def numbers(z: Tensor, begin: int) -> Tensor:
        return likelihood_partial(z, target, 1, first_class + begin, classes, weight, *options)

    return parts_of(linear, kept, numbers)


def linear_likelihood_partial_reference(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    first_class: int,
    classes: int,
    ignore_index: int,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    entropy: bool,
    product: torch.dtype | None,
    width: int,
    kept: int,
) -> tuple[Tensor, Tensor]:
    """The part that a linear layer's classes are, in plain PyTorch, [rows, 4], and no logits."""
    logits = plain_logits(input, linear_weight, linear_bias).flatten(0, -2)
    w = None if weight is None else wide(weight)
    options = (ignore_index, label_smoothing, scale, softcap, entropy)
    part = likelihood_partial_reference(logits, flat(target), 1, first_class, classes, w, *options)
    return part, input.new_empty(target.numel(), 0)


class _LinearOptions(NamedTuple):
    """What follows the operands in the schema."""

    linear_bias: Tensor | None
    weight: Tensor | None
    first_class: int
    classes: int
    ignore_index: int
    label_smoothing: float
    scale: float
    softcap: float | None
    entropy: bool
    product: torch.dtype | None
    width: int
    kept: int


def _linear_partial(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    o = _LinearOptions(*given)
    check_schedule("linear_likelihood_partial", linear_weight.shape[0], o.width, o.kept)
    linear = Linear.of(input, linear_weight, o.linear_bias, o.product, o.width)
    w = None if o.weight is None else wide(o.weight)
    of_part = (o.ignore_index, o.label_smoothing, o.scale, o.softcap, o.entropy)
    parts, logits = linear_parts(linear, flat(target), o.first_class, o.classes, w, of_part, o.kept)
    return likelihood_join(parts, o.scale, o.softcap, o.entropy), logits


def _fake_linear_partial(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    o = _LinearOptions(*given)
    part = input.new_empty(target.numel(), NUMBERS, dtype=statistics_of(input, o.product))
    return part, room_for(input.new_empty(0, dtype=operand_dtype(input, o.product)), target.numel(), o.kept)


linear_likelihood_partial = Operator(
    "linear_likelihood_partial",
    linear_likelihood_partial_reference,
    _fake_linear_partial,
    outputs=2,
    kernel=composed(_linear_partial),
    flops=forward_flops,
).raw
