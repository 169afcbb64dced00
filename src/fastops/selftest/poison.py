"""Outputs in memory full of NaN, so that an element that no kernel writes shows.

``torch.utils.deterministic.fill_uninitialized_memory`` does not reach what an extension allocates through the stable
ABI on the CPU. So memory is filled and freed before the call, for the allocator to hand out again; that it did is
checked by the outputs' addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

NAN_BYTE = 0xFF  # all bits set are a NaN in every floating-point dtype
COPIES = 10  # of each output's size: more than the C library keeps in its per-thread cache, which memalign passes by
LARGE = 1 << 14  # and a piece that is cut up for small requests; too small for torch to start threads on


class NotPoisonedError(Exception):
    """The allocator never handed out the prepared memory."""


def unwritten(call: Callable[[], Iterable[Tensor]], attempts: int = 24) -> int:
    """How many elements of the outputs the call leaves unwritten. Finite inputs must give finite outputs."""
    first = _non_empty(call)
    kept = [first]  # alive, so that memory freed long ago is used up and the prepared memory's turn comes
    found: dict[int, int] = {}  # unwritten elements of those outputs that did lie in prepared memory
    for attempt in range(attempts):
        prepared = _fill_and_free(first)
        outputs = _non_empty(call)
        for k, out in enumerate(outputs):
            if any(begin <= out.data_ptr() < end for begin, end in prepared):
                found[k] = max(found.get(k, 0), int(out.isnan().sum()))
        if len(found) == len(first):
            return sum(found.values())
        kept.append(outputs)
        kept += [[torch.empty_like(out) for out in first] for _ in range(2 ** min(attempt, 12))]
    raise NotPoisonedError("the allocator does not hand out freed memory again; nothing is proved")


def _non_empty(call: Callable[[], Iterable[Tensor]]) -> list[Tensor]:
    return [out for out in call() if out.numel()]


def _fill_and_free(like: list[Tensor]) -> list[tuple[int, int]]:
    """The address ranges of memory that is full of NaN and free, pieces of each tensor's size among it."""
    sizes = [(out.numel() * out.element_size(), out.device) for out in like]
    sizes += [(LARGE, device) for device in {out.device for out in like}]
    # Filled at their very size and freed only together: else one piece would be filled many times.
    pieces = [torch.full((n,), NAN_BYTE, dtype=torch.uint8, device=device) for n, device in sizes * COPIES]
    return [(piece.data_ptr(), piece.data_ptr() + piece.numel()) for piece in pieces]
