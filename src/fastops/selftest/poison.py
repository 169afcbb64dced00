"""Outputs in memory full of one byte, so that an element that no kernel writes shows.

``torch.utils.deterministic.fill_uninitialized_memory`` does not reach what an extension allocates through the stable
ABI on the CPU. The C library can fill what it hands out (glibc's M_PERTURB), which is proved on memory of the outputs'
sizes. Where it cannot, and on GPUs, memory is filled and freed before the call, for a caching allocator to hand out
again; that it did is proved by the outputs' addresses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

BYTE = 0x7E  # a NaN in float16, about 1e38 in bfloat16 and float32, 1e301 in float64: no result of ours
BLOCK = 512  # bytes that the caching allocator of GPUs rounds up to
_MOST_KEPT = 1 << 28  # bytes
_WORD = int.from_bytes([BYTE] * 8, "big")
_M_PERTURB = -6  # of malloc.h


class NotPoisonedError(Exception):
    """No way was found to have the outputs in prepared memory; nothing is proved."""


def unwritten(call: Callable[[], Iterable[Tensor]]) -> int:
    """How many elements of an output the call leaves unwritten, at most."""
    first = _non_empty(call())
    if any(out.is_cpu for out in first) and (found := _by_c_library(call, first)) is not None:
        return found
    return _by_recycling(call, first)


def _by_c_library(call: Callable[[], Iterable[Tensor]], like: list[Tensor], rounds: int = 20) -> int | None:
    """None if the C library does not fill memory.

    Small pieces that were freed before come back unfilled, a few of each size: hence rounds that keep what they got.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return None
    probes: list[Tensor] = []
    outputs: list[Tensor] = []
    for _ in range(rounds):
        mallopt(_M_PERTURB, BYTE ^ 0xFF)  # new memory is filled with the complement
        try:
            probes += [torch.empty_like(out) for out in like]
            outputs += _non_empty(call())
        finally:
            mallopt(_M_PERTURB, 0)
    full = sum(_untouched(probe) == probe.numel() for probe in probes)
    return max(_untouched(out) for out in outputs) if 2 * full > len(probes) else None


def _by_recycling(call: Callable[[], Iterable[Tensor]], like: list[Tensor]) -> int:
    return sum(map(_untouched, _recycled(lambda: _non_empty(call()), like)))


def _recycled(call: Callable[[], list[Tensor]], like: list[Tensor], attempts: int = 5) -> list[Tensor]:
    """Outputs in prepared memory, on GPUs in whole blocks of it."""
    kept = []  # alive, so that another place's turn comes
    words = [_whole_blocks(out.nbytes) // 8 if out.is_cuda else -(-out.nbytes // 8) for out in like]
    for _ in range(attempts):
        pieces = [torch.full((count,), _WORD, dtype=torch.int64, device=like[0].device) for count in words * 4]
        ranges = _joined((piece.data_ptr(), piece.data_ptr() + piece.nbytes) for piece in pieces)
        del pieces
        kept += _used_up(like, ranges)
        outputs = call()
        if all(_inside(out, ranges) for out in outputs):
            return outputs
        kept += outputs
    raise NotPoisonedError("the allocator neither fills memory nor hands out freed memory again")


def _used_up(like: list[Tensor], ranges: list[tuple[int, int]], attempts: int = 2000) -> list[Tensor]:
    """What had to be allocated, but for too much, until tensors of these sizes would lie in the ranges."""
    kept: list[Tensor] = []
    size = 0
    while attempts and size < _MOST_KEPT:
        probes = [torch.empty_like(out) for out in like]
        outside = [probe for probe in probes if not _inside(probe, ranges)]
        if not outside:
            break
        kept += outside
        size += sum(probe.nbytes for probe in outside)
        attempts -= 1
    return kept


def _inside(out: Tensor, ranges: list[tuple[int, int]]) -> bool:
    """With the rest of its block, on a GPU."""
    first, last = out.data_ptr(), out.data_ptr() + out.nbytes
    last += -last % BLOCK if out.is_cuda else 0
    return any(begin <= first and last <= end for begin, end in ranges)


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those that touch are one: what was freed is handed out in other pieces."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if found and found[-1][1] == begin:
            found[-1] = found[-1][0], end
        else:
            found.append((begin, end))
    return found


def written_behind(call: Callable[[], Iterable[Tensor]], like: Iterable[Tensor]) -> bool:
    """Whether memory behind an output is written, on a GPU, of a call that allocates nothing else.

    What else it allocates may lie there, and be written and freed. ``like``: other outputs of the call.
    """
    like = [out for out in like if out.numel()]
    if not like:
        return False
    device = like[0].device
    room = sum(_whole_blocks(out.nbytes) for out in like)
    room += _MARGIN + 2 * max((-(-out.nbytes // len(out)) for out in like if out.dim()), default=0)
    piece = torch.full((_whole_blocks(room) // 8,), _WORD, dtype=torch.int64, device=device)
    ranges = [(piece.data_ptr(), piece.data_ptr() + piece.nbytes)]
    del piece
    kept = _used_up(like, ranges)
    before = _allocations(device)
    outputs = [out for out in call() if out.numel()]
    if _allocations(device) - before > len(outputs):
        return False
    del kept
    if not all(_inside(out, ranges) for out in outputs):
        raise NotPoisonedError("the allocator does not hand out freed memory again")
    spans = sorted((out.data_ptr(), out.data_ptr() + out.nbytes) for out in outputs)
    nexts = [first for first, _ in spans[1:]] + [ranges[0][1]]
    return any(_is_written(last, first, device) for (_, last), first in zip(spans, nexts, strict=True))


_MARGIN = 1 << 14


def _allocations(device: torch.device) -> int:
    count: int = torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]["allocated"]
    return count


def _is_written(begin: int, end: int, device: torch.device) -> bool:
    """Read without an allocation there, which would be written."""
    size = min(end - begin, _MARGIN)
    storage = torch._C._construct_storage_from_data_pointer(begin, device, size)
    return bool((torch.empty(0, dtype=torch.uint8, device=device).set_(storage).cpu() != BYTE).any())


def _non_empty(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Those that can tell: a byte of a bit mask may be any, and the masks are compared whole with the reference's."""
    return [out for out in outputs if out.numel() and out.is_floating_point()]


def _untouched(out: Tensor) -> int:
    """The elements all of whose bytes are the prepared one."""
    rows = out.contiguous().view(-1).view(torch.uint8).view(-1, out.element_size())
    return int((rows == BYTE).all(1).sum())
