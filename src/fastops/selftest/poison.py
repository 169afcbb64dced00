"""Outputs in memory full of NaN, so that an element that no kernel writes shows.

``torch.utils.deterministic.fill_uninitialized_memory`` does not reach what an extension allocates through the stable ABI on
the CPU. So buffers of the outputs' sizes are filled and freed before the call, which makes the allocator hand them out
again. That it did is checked by their addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

NAN_BYTE = 0xFF  # all bits set are a NaN in every floating-point dtype


class NotPoisonedError(Exception):
    """The allocator never handed out the prepared memory."""


def unwritten(call: Callable[[], Iterable[Tensor]], attempts: int = 16) -> int:
    """How many elements of the outputs the call leaves unwritten. Finite inputs must give finite outputs."""
    sizes = _sizes(call())
    for attempt in range(attempts):
        ranges = _fill_and_free(sizes, copies=2 + attempt)
        outputs = [out for out in call() if out.numel()]
        if all(any(begin <= out.data_ptr() < end for begin, end in ranges) for out in outputs):
            return sum(int(out.isnan().sum()) for out in outputs)
    raise NotPoisonedError("the allocator does not hand out freed memory again; nothing is proved")


def _sizes(outputs: Iterable[Tensor]) -> list[tuple[int, torch.device]]:
    return [(out.numel() * out.element_size(), out.device) for out in outputs if out.numel()]


def _fill_and_free(sizes: list[tuple[int, torch.device]], copies: int) -> list[tuple[int, int]]:
    # Filled through a tensor of the very size and freed only together: else one piece of memory is filled many times.
    buffers = [
        torch.full((size,), NAN_BYTE, dtype=torch.uint8, device=device) for size, device in sizes for _ in range(copies)
    ]
    return [(b.data_ptr(), b.data_ptr() + b.numel()) for b in buffers]
