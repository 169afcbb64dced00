"""More numbers than 32 bits count, in rows that are one piece of a GPU's memory over and over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import RawCall
from .bits import all_alike, other_bits
from .checks import NOT_CHECKED, Outcome
from .driver_memory import DriverMemory
from .target import Target

CHECK = "more than 2^31 numbers"
_NUMBERS = 1 << 20  # of the first call's tensors
_PIECES = 4  # of them are what is repeated, so that tensors of several heads are whole pages of memory as well
_COLUMNS = 1024, 4096, 65536  # that kernels of one row, of several blocks a row and of long rows take
_ROOM = 4  # times the results must be free: other processes check at the same time


def many_numbers(t: Target) -> Iterator[Outcome]:
    """The first call of each raw op and length, of bfloat16 alone: all kernels' indices are of one source.

    Each repetition has the results of the piece by itself. What has no room on the GPU is not tried.
    """
    if t.quick or t.dtype != torch.bfloat16:
        return
    try:
        memory = DriverMemory(t.path.device)
        wrong, no_room = _by_op(t, memory)
    except (OSError, AttributeError) as error:
        yield Outcome(CHECK, True, detail=f"{NOT_CHECKED} {error}")
        return
    detail = ", ".join(wrong) or (f"{NOT_CHECKED} no room for {', '.join(no_room)}" if no_room else "")
    yield Outcome(CHECK, not wrong, detail=detail)


def _by_op(t: Target, memory: DriverMemory) -> tuple[list[str], list[str]]:
    """Ops whose results are wrong, and those that have no room."""
    wrong, no_room = list[str](), list[str]()
    calls: dict[tuple[str, int], RawCall] = {}
    for columns in _COLUMNS[: 1 if t.case.elementwise else None]:
        for call in t.case.raw(t.make(), _NUMBERS // columns, columns):
            by_rows = call.args_of is None or t.case.elementwise
            has_them = columns == _COLUMNS[0] or columns in {x.shape[-1] for x in _of_rows(call)}  # not fewer, as heads
            if by_rows and has_them and call.row_outputs:
                calls.setdefault((call.op, columns), call)
    for (op, columns), call in calls.items():
        try:
            differs = _differs(call.repeated(_PIECES), memory)
        except torch.OutOfMemoryError:
            differs = None
        if differs is not False:
            (no_room if differs is None else wrong).append(f"{op} of {columns} columns")
        torch.cuda.empty_cache()
    return wrong, no_room


def _differs(piece: RawCall, memory: DriverMemory) -> bool | None:
    """Whether a repetition has other results; None if there is no room for them."""
    alone = piece()
    times = (1 << 31) // max(x.numel() for x in _of_rows(piece)) + 1
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(alone[0].device)
    if _ROOM * times * sum(alone[k].nbytes for k in piece.row_outputs) > free:
        return None
    with _over_and_over(piece, times, memory) as many:
        outputs = many()
        flags = []
        for k in piece.row_outputs:
            repeated = outputs[k].view(times, *alone[k].shape)
            flags += [~all_alike(repeated), other_bits([repeated[0]], [alone[k]])]
        return bool(torch.stack(flags).any())


def _of_rows(call: RawCall) -> list[Tensor]:
    return [x for k, x in enumerate(call.args) if isinstance(x, Tensor) and k not in call.shared]


@contextlib.contextmanager
def _over_and_over(call: RawCall, times: int, memory: DriverMemory) -> Iterator[RawCall]:
    """With tensors of rows so many times, of which those of whole pages are in memory once."""
    given: dict[int, Tensor] = {}
    with contextlib.ExitStack() as until:
        for k, x in enumerate(call.args):
            if not isinstance(x, Tensor) or k in call.shared:
                continue
            if x.nbytes % memory.granularity:
                given[k] = x.repeat(times, *[1] * (x.dim() - 1))
                continue
            place = memory.reserve(times * x.nbytes)
            memory.back(place, x.nbytes, times)
            until.callback(memory.free, place, x.nbytes, times)
            dense = x.contiguous()
            there = memory.tensor(place, times * x.nbytes, x.dtype)
            there.as_strided(x.shape, dense.stride()).copy_(dense)
            given[k] = there.as_strided((times * len(x), *x.shape[1:]), dense.stride())
        yield call.with_tensors(given)
