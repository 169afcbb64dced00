"""Which samples of a case are split among processes, and in which placements."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ...cases import Sample, by_name
from ..accuracy import tensors_of

MOST_ELEMENTS = 20_000


class Effort(NamedTuple):
    """On one operator in one dtype."""

    calls: int  # shared out among its samples, each of which has at least those of tensors spread alike
    few: bool  # two samples, not two of each kind
    constants: bool  # gradients of what mostly learns nothing, too


# By --quick: on the first dtype, and on each other one.
EFFORTS = {
    True: (Effort(24, few=True, constants=False), Effort(0, few=True, constants=False)),
    False: (Effort(80, few=False, constants=True), Effort(20, few=False, constants=False)),
}


@functools.cache
def samples(name: str, processes: int, few: bool) -> tuple[Sample, ...]:
    """Of arguments of each kind one whose dimensions are shared out evenly and one of which they are not.

    ``few``: one of each, with as many arguments and such dimensions as there are.
    """
    found: dict[tuple[Hashable, str], tuple[tuple[int, ...], Sample]] = {}
    for sample in by_name()[name].samples:
        if sample.large:
            continue
        args = sample.args("cpu", torch.bfloat16)
        sizes = [x.numel() for x in tensors_of(args)]
        if not all(sizes) or sum(sizes) > MOST_ELEMENTS:
            continue
        for how, fits in _FITS.items():
            dims = sum(fits(size, processes) for size in args[0].shape)
            score = (dims, len(sizes), sum(a is not None for a in args))
            kind = () if few else _kind(args)
            if dims and ((kind, how) not in found or score > found[kind, how][0]):
                found[kind, how] = score, sample
    return tuple({sample.name: sample for _, sample in found.values()}.values())


_FITS: dict[str, Callable[[int, int], bool]] = {
    "even": lambda size, processes: size % processes == 0,
    "uneven": lambda size, processes: size > processes and size % processes != 0,
}


def _kind(args: tuple[Any, ...]) -> Hashable:
    return tuple(map(_kind_of_one, args))


def _kind_of_one(a: Any) -> str:
    if isinstance(a, Tensor):
        return f"{a.dim()} {a.dtype}"
    if isinstance(a, tuple):
        return f"of {len(a)}"
    return "float" if isinstance(a, float) else str(a)


def ways(x: Tensor) -> list[Placement]:
    """Those that one tensor may have on one mesh dimension."""
    found: list[Placement] = [Replicate(), *map(Shard, range(x.dim()))]
    adds_up = x.is_floating_point() and bool(x.isfinite().all())  # infinite numbers have no summands
    return [*found, Partial()] if adds_up else found


def combinations(tensors: Sequence[Tensor], most: int) -> list[tuple[Placement, ...]]:
    """The placements of all tensors, the same on all processes: all that there are, or ``most`` of them.

    These begin with what is mostly met, tensors of one shape spread alike beside whole parameters; then each tensor is
    spread by itself, and the rest is drawn.
    """
    each = [ways(x) for x in tensors]
    if math.prod(map(len, each)) <= most:
        return list(itertools.product(*each))
    whole: tuple[Placement, ...] = (Replicate(),) * len(tensors)
    first = tensors[0].shape
    alike = [tuple(p if x.shape == first else Replicate() for x in tensors) for p in each[0]]
    alone = [(*whole[:k], p, *whole[k + 1 :]) for k, choices in enumerate(each) for p in choices]
    chance = random.Random(0)
    if most < len(alike) + len(alone):
        chance.shuffle(alone)
    found = dict.fromkeys(alike)
    found |= dict.fromkeys(alone[: max(0, most - len(found))])
    while len(found) < most:
        found[tuple(map(chance.choice, each))] = None
    return list(found)
