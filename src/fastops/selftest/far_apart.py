"""Rows whose distance in elements no 32 bits hold, in memory that is there where a row is, and not between."""

from __future__ import annotations

import functools
import mmap
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..cases import RawCall
from .checks import NOT_CHECKED, Outcome, is_statistic, other_bits_of
from .driver_memory import DriverMemory
from .target import Target

CHECK = "rows far apart"
_ROWS, _COLUMNS = 3, 67
_STEP = (1 << 31) + (1 << 21)  # elements; of any size its bytes are whole pages of a GPU
_MOST = 8  # tensors of a call
_NORESERVE = 0x4000  # of mman.h: memory is not promised


class _Host:
    """The system backs a page when it is touched."""

    def tensor(self, slot: int, itemsize: int) -> Tensor:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        return torch.frombuffer(mmap.mmap(-1, _ROWS * _STEP * itemsize, flags=flags), dtype=torch.uint8)


class _Device:
    """Of a GPU each slot has addresses for the largest elements."""

    def __init__(self, device: torch.device) -> None:
        self._memory = DriverMemory(device)
        self._begins = [self._memory.reserve(_ROWS * _STEP * 8) for _ in range(_MOST)]
        self._backed: set[int] = set()

    def tensor(self, slot: int, itemsize: int) -> Tensor:
        begin = self._begins[slot]
        for place in (begin + row * _STEP * itemsize for row in range(_ROWS)):
            if place not in self._backed:
                self._memory.back(place, self._memory.granularity)
                self._backed.add(place)
        return self._memory.tensor(begin, _ROWS * _STEP * itemsize, torch.uint8)


@functools.cache
def _on_device(device: torch.device) -> _Device:
    return _Device(device)


def far_apart(t: Target) -> Iterator[Outcome]:
    """All tensors of a raw op with rows, at once: the bits of contiguous ones."""
    wrong = {}
    for call in t.raw(_ROWS, _COLUMNS):
        if not call.row_outputs:  # by a GEMM of torch's, whose bits are its own
            continue
        try:
            memory = _Host() if t.path.device.type == "cpu" else _on_device(t.path.device)
            laid_out = _laid_out(call, memory.tensor)
        except (OSError, AttributeError, ValueError) as error:
            yield Outcome(CHECK, True, detail=f"{NOT_CHECKED} {error}")
            return
        if other_bits_of(call.op, laid_out(), call()):
            wrong[call.op] = call.op
    yield Outcome(CHECK, not wrong, detail=", ".join(wrong))


def _laid_out(call: RawCall, memory: Callable[[int, int], Tensor]) -> RawCall:
    args, slots = list(call.args), iter(range(_MOST))
    for k, x in enumerate(call.args):
        if isinstance(x, Tensor) and x.dim() and len(x) == _ROWS and k not in call.shared and not is_statistic(call, k):
            there = memory(next(slots), x.element_size()).view(x.dtype)
            args[k] = there.as_strided(x.shape, (_STEP, *x.contiguous().stride()[1:])).copy_(x)
    return call.with_args(tuple(args))
