"""The fewest bytes that a call must move: every tensor that it needs read once, every result written once.

    forward:   tensor arguments + outputs
    backward:  incoming gradients + what the derivative depends on + gradients

The second term of backward is ``Case.gradient_reads``; statistics that an implementation saves are its own affair.
Forward and backward together is the sum, since the incoming gradient comes only after the output has gone out. A tensor
that is returned as two results counts once. These are the same bytes for every implementation: they come from the
problem and fastops' results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..cases import Case
from ..selftest.accuracy import tensors_of


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Of the tensors' elements, those of one place in memory counted once."""
    seen = {(t.data_ptr() or id(t), t.nbytes): t.nbytes for t in tensors}
    return sum(seen.values())


def forward_bytes(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> int:
    return distinct_bytes(tensors_of(args)) + distinct_bytes(outputs)


def backward_bytes(
    case: Case,
    args: tuple[Any, ...],
    outputs: tuple[Tensor, ...],
    incoming: tuple[Tensor, ...],
    gradients: tuple[Tensor, ...],
) -> int:
    reads = tensors_of(args) if case.gradient_reads is None else case.gradient_reads(args, outputs)
    return distinct_bytes((*incoming, *reads)) + distinct_bytes(gradients)
