"""The raw ops' arguments between margins, and what is behind their outputs, on any device with a caching allocator."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import Case, Make, RawCall
from .bits import other_bits
from .checks import NOT_CHECKED, Outcome, is_refusal
from .poison import BLOCK, NotPoisonedError, written_behind
from .target import Target
from .together import Flag, first_set

CHECK = "nothing outside is touched"

# Around the vectors and blocks of every level and dtype, and where a row has more than one segment of 16384 bytes.
_LENGTHS = (1, 3, 4, 5, 7, 8, 9, 12, 15, 17, 20, 31, 33, 36, 63, 65, 67, 127, 129, 257)
_ROWS = (1, 2, 5)


def raw_calls(case: Case, make: Make, quick: bool) -> Iterator[tuple[RawCall, str]]:
    lengths = (*_LENGTHS[1 if quick else 0 :: 2 if quick else 1], 16384 // make.dtype.itemsize + 3)
    problems = [(_ROWS[(k + make.dtype.itemsize) % 3], n) for k, n in enumerate(lengths)]
    for rows, n in (*problems, (0, 17), (3, 0)):
        try:
            found = case.raw(make, rows, n)
        except (RuntimeError, IndexError, ZeroDivisionError):
            if n > 1:
                raise
            continue  # an op of no classes, or of two parts of one
        yield from ((call, f"{call.op}, {rows} rows of {n}") for call in found)


def results(call: RawCall) -> tuple[Tensor, ...]:
    """None of them where the op refuses, as rope does one number."""
    try:
        return call()
    except RuntimeError as error:
        if is_refusal(error, call.op):
            return ()
        raise


def span(x: Tensor) -> int:
    """Bytes from the first element to the last."""
    count = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    return count * x.element_size() if x.numel() else 0


def between(tensors: list[Tensor], late: int) -> tuple[Tensor, list[Tensor]]:
    """A memory, and copies in it, so many elements behind an aligned address, with NaN or the index 1 around each."""
    sizes = [BLOCK * (4 + (span(x) + 8 * late) // BLOCK) for x in tensors]
    memory = torch.full((sum(sizes) + BLOCK,), 0xFF, dtype=torch.uint8, device=tensors[0].device)
    copies, begin = [], -memory.data_ptr() % BLOCK
    for x, size in zip(tensors, sizes, strict=True):
        piece = memory[begin : begin + size]
        if x.dtype == torch.int64:
            piece.view(x.dtype).fill_(1)
        at = 2 * BLOCK + late * x.element_size()
        copies.append(torch.as_strided(piece[at : at + span(x)].view(x.dtype), x.shape, x.stride()).copy_(x))
        begin += size
    return memory, copies


def margins(t: Target) -> Iterator[Outcome]:
    flags: list[Flag[str]] = []
    behind: dict[str, str] = {}
    reason = ""
    for call, text in raw_calls(t.case, t.make(), t.quick):
        expected = results(call)
        tensors = {k: x for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.numel()}
        for late in (0, 1)[t.quick :] if tensors else ():
            memory, copies = between(list(tensors.values()), late)
            before = memory.clone()
            found = results(call.with_tensors(dict(zip(tensors, copies, strict=True))))
            flags.append((call.op, f"{text}: writes to its arguments or beside them", (memory != before).any()))
            if call.row_outputs and expected:
                flags.append((call.op, f"{text}: other bits between margins", other_bits(found, expected)))
        try:
            if expected and not reason and written_behind(call, expected):
                behind[call.op] = f"{text}: writes behind an output"
        except NotPoisonedError as error:
            reason = f"{NOT_CHECKED} {error}"
    wrong = first_set(flags) | behind
    yield Outcome(CHECK, not wrong, detail="; ".join(wrong.values()) or reason)
