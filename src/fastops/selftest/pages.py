"""The process whose tensors end, or begin, at memory that may not be touched: what reads or writes outside is caught.

Arguments of raw ops, and all that these allocate, lie there. It reads requests and answers them, a line each, and says
in the file whose descriptor it gets what it is at, for the case that a null pointer, or a GPU's error, ends it.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ..cases import Layout, Make, RawCall, by_name, row_slice, transposed
from .bits import other_bits
from .checks import is_statistic, other_bits_of
from .device_pages import DevicePages
from .host_pages import HostPages
from .margins import raw_calls, results
from .page_memory import ROOM, Pages
from .reach import calls_of_rules
from .target import Path, Target
from .together import Flag, first_set

PLACE = 300  # bytes of what it is at
START = "its start"  # which it is at before the first call
# Whether tensors end at the guard, or begin there; how those of two dimensions or more lie.
Way = tuple[bool, Layout | None]
WAYS: tuple[Way, ...] = ((True, None), (False, None), (True, row_slice), (True, transposed))


def _calls(t: Target) -> Iterator[tuple[RawCall, str, Iterable[Way]]]:
    """Around vectors and blocks, and at the bounds of rules, but for a quick run of the CPU, whose rules are few."""
    chance = random.Random(str(t.dtype))
    for call, text in _around_vectors(t.case.name, t.path.device, t.dtype, t.quick):
        yield call, text, (WAYS[0], chance.choice(WAYS[1:])) if t.quick else WAYS
    if t.path.kind == "cuda" or not t.quick:
        for call, text in calls_of_rules(t, ROOM[t.path.kind]):
            yield call, text, WAYS[:1]


@functools.lru_cache(4)  # an op's dtypes, for the next level
def _around_vectors(op: str, device: torch.device, dtype: torch.dtype, quick: bool) -> list[tuple[RawCall, str]]:
    return list(raw_calls(by_name()[op], Make(device, dtype), quick))


def _touched(pages: Pages, call: RawCall, ways: Iterable[Way]) -> tuple[str, list[tuple[str, Tensor]]]:
    """How a call touches what is outside of its tensors; or what may come of that, and whether it does."""
    found = []
    tensors = {k: x for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.numel()}
    for at_end, layout in ways:
        lie = {k: layout(x) for k, x in tensors.items() if layout and x.dim() > 1 and x.numel() < 8192}
        laid_out = {k: x for k, x in lie.items() if not is_statistic(call, k)}
        if laid_out or not layout:
            found.append((layout, pages.run(call, tensors | laid_out, at_end)))
            if pages.faults:
                return pages.faults[0] + _name_of(layout), []
    expected = results(call)  # last: what is written outside of ordinary tensors may end the process
    flags = []
    for layout, outputs in found if call.row_outputs else ():  # else by a GEMM of torch's, whose bits are its own
        if outputs or expected:  # else the op refuses these arguments
            differ = other_bits_of(call.op, outputs, expected) if layout else other_bits(outputs, expected)
            flags.append(("other bits" + _name_of(layout), differ))
    return "", flags


def _name_of(layout: Layout | None) -> str:
    return f", {layout.__name__}" if layout else ""


def wrong_calls(pages: Pages, t: Target, place: int, without: list[str], apart: bool) -> list[str]:
    """What is wrong with a call of each op.

    A GPU is waited for at the end, or, for calls ``apart``, behind each, so that an error is that call's.
    """
    found: dict[str, str] = {}
    differs: list[Flag[str]] = []
    for call, text, ways in _calls(t):
        if call.op in {*found, *without}:
            continue
        os.pwrite(place, f"{text:<{PLACE}}".encode(), 0)
        fault, flags = _touched(pages, call, ways)
        if fault:
            found[call.op] = f"{text}: {fault}"
        differs += [(call.op, f"{text}: {how}", flag) for how, flag in flags]
        if apart and t.path.kind == "cuda":
            torch.cuda.synchronize(t.path.device)
    if t.path.kind == "cuda":
        torch.cuda.synchronize(t.path.device)
    return list((first_set(differs) | found).values())


def what_it_is_at(place: int) -> str:
    return os.pread(place, PLACE, 0).decode().strip() or START


def main() -> None:
    answers, place, device = os.fdopen(os.dup(1), "w"), int(sys.argv[1]), torch.device(sys.argv[2])
    os.dup2(2, 1)  # of whatever prints
    torch.set_grad_enabled(False)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        pages = HostPages(device) if device.type == "cpu" else DevicePages(device)
    except (OSError, AttributeError, StopIteration, RuntimeError) as error:
        for _ in sys.stdin:
            print(json.dumps(str(error)), file=answers, flush=True)
    for line in sys.stdin:
        op, dtype, kind, isa, quick, without, apart = json.loads(line)
        target = Target(by_name()[op], getattr(torch, dtype), Path(device, kind, isa), quick)
        target.path.choose()
        try:
            found = wrong_calls(pages, target, place, without, apart)
        except RuntimeError as error:
            if device.type == "cpu":
                raise
            # Behind an error of a GPU this process can do nothing more there.
            text = f"{what_it_is_at(place)}: {str(error).partition(chr(10))[0]}"
            os.pwrite(place, f"{text:<{PLACE}}"[:PLACE].encode(), 0)
            os._exit(1)
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
