"""Asks the process of ``pages.py``, which works beside the other checks, and begins another when it dies."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import torch

from .checks import NOT_CHECKED, Outcome
from .pages import START, what_it_is_at
from .target import Target

CHECK = "guard pages"

COMMAND = (sys.executable, "-m", "fastops.selftest.pages")
SILENCE = 300  # seconds for an op in one dtype


class _Child:
    def __init__(self, device: torch.device) -> None:
        self._place, self._silent = os.memfd_create("place"), False
        self._process = subprocess.Popen(
            [*COMMAND, str(self._place), str(device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self._place],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_WAIT_POLICY": "PASSIVE"},
        )

    def ask(self, t: Target, without: list[str], apart: bool) -> None:
        """See :func:`fastops.selftest.pages.wrong_calls`."""
        os.ftruncate(self._place, 0)
        assert self._process.stdin
        request = (t.case.name, str(t.dtype).removeprefix("torch."), t.path.kind, t.path.isa, t.quick, without, apart)
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def answer(self) -> list[str] | str | None:
        """What is wrong, why there is no such memory, or None if it died."""
        assert self._process.stdout
        if not select.select([self._process.stdout], [], [], SILENCE)[0]:
            self._process.kill()
            self._silent = True
        line = self._process.stdout.readline()
        found: list[str] | str | None = json.loads(line) if line else None
        return found

    def epitaph(self) -> str:
        code = self._process.wait()
        place = what_it_is_at(self._place)
        os.close(self._place)
        if self._silent:
            return f"{place}: no answer in {SILENCE} seconds"
        return f"{place}: the process ended with {signal.Signals(-code).name if code < 0 else code}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._place)


_children: dict[torch.device, _Child] = {}


def _child(device: torch.device) -> _Child:
    if device not in _children:
        _children[device] = _Child(device)
    return _children[device]


def begun(t: Target) -> Iterator[Outcome]:
    if sys.platform == "linux":
        _child(t.path.device).ask(t, [], apart=False)
    return iter(())


def guarded(t: Target) -> Iterator[Outcome]:
    """What :func:`begun` asked for. Where the process ends, another is asked for the other ops; of a GPU first for all
    of them again, call by call.
    """
    died: list[str] = []
    unplaced = ""  # how a GPU's first process ended, whose place may be behind the call at fault: calls run late
    without: list[str] = []
    found: list[str] | str | None = "pages are guarded on Linux alone"
    while sys.platform == "linux" and (found := _child(t.path.device).answer()) is None:
        how = _children.pop(t.path.device).epitaph()
        if t.path.kind == "cuda" and not unplaced and not how.startswith(START):
            unplaced = f"{how}, by this call or an earlier one, but by none that is waited for"
        else:
            died.append(how)
            op = how.partition(",")[0]
            if how.startswith(START) or op in without:
                break
            without.append(op)
        _child(t.path.device).ask(t, without, apart=True)
    is_placed = any(not how.startswith(START) for how in died)
    wrong = died if is_placed or not unplaced else [unplaced, *died]
    if isinstance(found, str) and not wrong:
        yield Outcome(CHECK, True, detail=f"{NOT_CHECKED} {found}")
    else:
        wrong = [*wrong, *([found] if isinstance(found, str) else found or ())]
        yield Outcome(CHECK, not wrong, detail="; ".join(wrong))
