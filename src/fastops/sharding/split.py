"""What a rule of sharding is: of a call's tensors, which dimensions run over the same thing, and what may be split.

A rule names the dimensions of a call's tensors: those of one name are split together. That is all that sharding asks of
an operator. A tensor that does not have what is split is needed whole, and an output that is a sum over it is partial:
each process has its own summand.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

Dims = tuple[Hashable, ...]  # names of leading dimensions; None: one that is never split


@dataclass(frozen=True)
class Call:
    """A call as a rule sees it: its arguments by the schema's names."""

    shapes: dict[str, torch.Size]  # of the tensors that are there, in the order of the schema
    others: dict[str, Any]
    outputs: int

    def __getitem__(self, name: str) -> Any:
        return self.others[name]

    @property
    def first(self) -> torch.Size:
        return next(iter(self.shapes.values()))


class Output(NamedTuple):
    """One that is the same on all processes, unless it has what is split or is a sum over it."""

    dims: Dims = ()
    sums: Dims = ()


class Split(NamedTuple):
    inputs: Mapping[str, Dims]  # those that are not named are needed whole
    outputs: Sequence[Output]
    free: Sequence[Dims]  # what may be split; more than one name: only together
    linear: bool = False  # of inputs that are partial sums the outputs are


Rule = Callable[[Call], Split]
EMPTY = Output()  # of an output without elements, or one that all processes have
