"""What the rules allow: the placements of outputs, and the fewest collectives with which any of them can be met.

A tensor costs one collective where it comes with another placement than a choice of the rule has, unless it is whole:
each process then has what is asked for. What is not behind a rule is in a table: losses, which a group computes
together, and products, whose partial sums are added up before the activation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from ...sharding import Call, lazy
from ...sharding.dtensor import Choice, choices_of
from .calls import RawOp


def choices(call: RawOp) -> Iterator[tuple[Choice, int]]:
    """Those of its rule that shards of its tensors can take, with the collectives that each asks for."""
    tensors = {name: x for name, x in call.arguments.items() if isinstance(x, DTensor)}
    others = {name: x for name, x in call.arguments.items() if name not in tensors}
    shapes = {name: torch.Size(x.shape) for name, x in tensors.items()}
    of = Call(shapes, others, len(call.op._schema.returns))
    for choice in choices_of(lazy.RULES[call.op], of, {name: x.placements for name, x in tensors.items()}):
        if all(map(_fits, tensors.values(), choice.inputs)):
            yield choice, sum(map(_moves, tensors.values(), choice.inputs))


def _fits(x: DTensor, placement: Placement) -> bool:
    """DTensor asks for a row on each process, and makes no partial sum of shards."""
    if isinstance(placement, Shard):
        return x.shape[placement.dim] >= x.device_mesh.size()
    return not (placement.is_partial() and x.placements[0].is_shard())


def _moves(x: DTensor, placement: Placement) -> bool:
    (came,) = x.placements
    return came != placement and not came.is_replicate()


def placements_of(outputs: Sequence[Any]) -> list[Placement]:
    return [x.placements[0] if isinstance(x, DTensor) else Replicate() for x in outputs]


def wrong_placements(call: RawOp) -> str:
    """What a raw op's outputs have, where no choice of its rule has that."""
    found = placements_of(call.outputs)
    if any(choice.outputs == found for choice, _ in choices(call)):
        return ""
    return f"{call.op} returned {found}, as no choice of its rule"


def too_many(call: RawOp) -> str:
    least = min(cost for _, cost in choices(call))
    if call.collectives <= least:
        return ""
    came = {name: str(x.placements[0]) for name, x in call.arguments.items() if isinstance(x, DTensor)}
    return f"{call.op} of {came} took {call.collectives} collectives, its rule's least is {least}"


Least = Callable[[tuple[DTensor, ...], int], tuple[int, int]]


def _no_more(tensors: tuple[DTensor, ...], processes: int) -> tuple[int, int]:
    return 0, 0


def _of_logits(x: DTensor, class_dim: int, processes: int, target: DTensor) -> tuple[int, int]:
    """Partial sums are added up, classes or a mean's rows take one all-gather or sum, targets go where rows are."""
    (placement,), classes = x.placements, x.shape[class_dim]
    shares_classes = classes > (processes - 1) * -(-classes // processes)
    of_classes = placement == Shard(class_dim) and shares_classes
    moved = int(placement.is_partial() or (placement == Shard(class_dim) and not shares_classes))
    together = int(of_classes or placement.is_partial() or _is_shard(placement, range(x.dim()), class_dim))
    return moved + together + int(_is_shard(target.placements[0], range(x.dim()))), moved


def _is_shard(placement: Placement, dims: range, but: int | None = None) -> bool:
    return isinstance(placement, Shard) and placement.dim in dims and placement.dim != but


def _cross_entropy(tensors: tuple[DTensor, ...], processes: int) -> tuple[int, int]:
    x, target = tensors
    return _of_logits(x, 1 if x.dim() > 1 else 0, processes, target)


def _of_linear(tensors: tuple[DTensor, ...], processes: int) -> tuple[int, int]:
    """Hidden states and the weight, each of which may have to be moved, the one all-gather, and targets."""
    x, weight, target = tensors
    moved = sum(not p.is_replicate() for p in (x.placements[0], weight.placements[0]))
    return moved + 1 + int(not target.placements[0].is_replicate()), moved


# (forward, backward) at most, beside the raw ops and torch's own.
BESIDE: dict[str, Least] = {
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _of_linear,
    "linear_log_prob": _of_linear,
    "linear": lambda tensors, processes: (1, 1),
}


def beside(name: str, tensors: tuple[DTensor, ...], processes: int) -> tuple[int, int]:
    return BESIDE.get(name, _no_more)(tensors, processes)
