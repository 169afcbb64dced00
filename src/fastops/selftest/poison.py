"""Outputs in memory full of one byte, so that an element that no kernel writes shows.

``torch.utils.deterministic.fill_uninitialized_memory`` does not reach what an extension allocates through the stable
ABI on the CPU. The C library can fill what it hands out (glibc's M_PERTURB), which is proved on memory of the outputs'
sizes. Where it cannot, and on GPUs, memory is filled and freed before the call, for a caching allocator to hand out
again; that it did is proved by the outputs' addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from .bits import bits

BYTE = 0x7E  # a NaN in float16, about 1e38 in bfloat16 and float32, 1e301 in float64: no result of ours
BLOCK = 512  # bytes that the caching allocator of GPUs rounds up to
_SMALL, _SEGMENT = 1 << 20, 1 << 21  # bytes up to which it has memory apart, and of which the driver's is multiples
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
    on_a_gpu = like and like[0].is_cuda
    found = _in_a_pool(call, like) if on_a_gpu else _in_freed_memory(call, like)
    if found is None:
        raise NotPoisonedError("the allocator neither fills memory nor hands out freed memory again")
    return found


def _in_a_pool(call: Callable[[], Iterable[Tensor]], like: list[Tensor]) -> int | None:
    with _prepared(like) as ranges:
        return _untouched_inside(_non_empty(call()), ranges)


def _in_freed_memory(call: Callable[[], Iterable[Tensor]], like: list[Tensor], attempts: int = 5) -> int | None:
    kept: list[Tensor] = []  # alive, so that another place's turn comes
    for _ in range(attempts):
        pieces = [torch.full((-(-out.nbytes // 8),), _WORD, dtype=torch.int64) for out in like * 4]
        ranges = _ranges(pieces)
        del pieces
        kept += (outputs := _non_empty(call()))
        if (found := _untouched_inside(outputs, ranges)) is not None:
            return found
    return None


def _untouched_inside(outputs: list[Tensor], ranges: list[tuple[int, int]]) -> int | None:
    return sum(map(_untouched, outputs)) if all(_inside(out, ranges) for out in outputs) else None


class _Pool:
    """Memory of a GPU, of which nothing else is free: pieces for small tensors, and one for all large ones."""

    def __init__(self, device: torch.device, small: int, large: int) -> None:
        self.small, self.large, self._device = small, large, device
        try:
            self._memory = torch.cuda.MemPool()
        except RuntimeError as error:  # an allocator that has none
            raise NotPoisonedError(str(error)) from error
        with self.used():
            torch.empty(large, dtype=torch.uint8, device=device)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """What is allocated meanwhile lies there, and must not outlive it."""
        with torch.cuda.device(self._device), torch.cuda.use_mem_pool(self._memory, self._device):
            yield


_pools: dict[torch.device, _Pool] = {}  # to make one is to wait for the driver


def _pool(device: torch.device, small: int, large: int) -> _Pool:
    """With at least so many bytes of both kinds."""
    held = _pools.get(device)
    if held is None or held.small < small or held.large < large:
        own = (held.small, held.large) if held else (_SEGMENT, _SEGMENT)
        sizes = (max(least, 1 << (size - 1).bit_length()) for size, least in zip((small, large), own, strict=True))
        held = _pools[device] = _Pool(device, *sizes)
    return held


@contextlib.contextmanager
def _prepared(like: list[Tensor], behind: int = 0) -> Iterator[list[tuple[int, int]]]:
    """Addresses of free memory of a pool, full of the byte: for tensors of these sizes, and so many bytes behind.

    What is small lies in segments, each of which must be full: tensors may be in any of them.
    """
    sizes, device = [_whole_blocks(out.nbytes) for out in like], like[0].device
    small, large = (sum(size for size in sizes if (size <= _SMALL) == so) for so in (True, False))
    large = _whole_blocks(large + behind) if large else 0
    pool = _pool(device, 2 * small, large)
    with pool.used():
        rooms = [_SMALL] * (pool.small // _SMALL) + [large] * bool(large)
        yield _ranges(torch.full((room // 8,), _WORD, dtype=torch.int64, device=device) for room in rooms)


def _inside(out: Tensor, ranges: list[tuple[int, int]]) -> bool:
    """With the rest of its block, on a GPU."""
    first, last = out.data_ptr(), out.data_ptr() + out.nbytes
    last += -last % BLOCK if out.is_cuda else 0
    return any(begin <= first and last <= end for begin, end in ranges)


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _ranges(pieces: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Their addresses. Those that touch are one: what was freed is handed out in other pieces."""
    found: list[tuple[int, int]] = []
    alive = list(pieces)  # or one would lie where the one before it did
    for begin, end in sorted((piece.data_ptr(), piece.data_ptr() + piece.nbytes) for piece in alive):
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
    behind = _MARGIN + 2 * max((-(-out.nbytes // len(out)) for out in like if out.dim()), default=0)
    with _prepared(like, behind) as ranges:
        before = _allocations(device)
        outputs = [out for out in call() if out.numel()]
        alone = _allocations(device) - before <= len(outputs)
        inside = all(_inside(out, ranges) for out in outputs)
        found = alone and inside and _any_is_written(_behind(outputs, ranges), device)
        del outputs
    if alone and not inside:
        raise NotPoisonedError("the allocator does not hand out freed memory again")
    return found


def _behind(outputs: list[Tensor], ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Where what is behind each output begins and ends."""
    begins = [out.data_ptr() + out.nbytes for out in outputs]
    bounds = sorted([out.data_ptr() for out in outputs] + [end for _, end in ranges])
    return [(begin, next(bound for bound in bounds if bound >= begin)) for begin in begins]


_MARGIN = 1 << 14


def _allocations(device: torch.device) -> int:
    count: int = torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]["allocated"]
    return count


def _any_is_written(places: list[tuple[int, int]], device: torch.device) -> bool:
    """Read without an allocation there, which would be written. No copy goes across two of the driver's."""
    copies = []
    for begin, end in places:
        size = min(end - begin, _MARGIN, _SEGMENT - begin % _SEGMENT)
        storage = torch._C._construct_storage_from_data_pointer(begin, device, size)
        there = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
        copies.append(there.to("cpu", non_blocking=True))
    torch.cuda.current_stream(device).synchronize()
    return any(bool((copy != BYTE).any()) for copy in copies)


def _non_empty(outputs: Iterable[Tensor]) -> list[Tensor]:
    """Those that can tell: a byte of a bit mask may be any, and the masks are compared whole with the reference's."""
    return [out for out in outputs if out.numel() and out.is_floating_point()]


def _untouched(out: Tensor) -> int:
    """The elements all of whose bytes are the prepared one."""
    prepared = int.from_bytes([BYTE] * out.element_size(), "big")
    return int((bits(out) == prepared).sum())
