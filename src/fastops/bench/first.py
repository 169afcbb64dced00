"""Time to the first result in a fresh process: importing the implementation and calling it once, without gradient.

    seconds = import + call

PyTorch's own import is not counted, nor the GPU's context and PyTorch's first kernel there. What a compiler leaves on
disk decides the time of the next process, so that each implementation that compiles is started twice: with empty caches
in a folder of this run, and with what the first one left there.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ..cases import DTYPES, by_name
from . import fresh, peers
from .problems import DeviceMake, InputSet, Shape
from .work import call_of, said

SHAPE: Shape = (8, 1024)
TIMEOUT = 300

# Not a module of ours: importing one would import fastops before the clock starts.
_PROGRAM = """
import sys, time
import torch
torch.zeros(8, device=sys.argv[1]).add_(1).sum().item()
start = time.perf_counter()
import fastops
imported = time.perf_counter() - start
from fastops.bench.first import child
child(sys.argv[2], imported)
"""


@dataclass(frozen=True)
class FirstResult:
    op: str
    dtype: str
    device: str
    implementation: str
    caches: str  # empty | filled
    refused: str = ""
    seconds: float | None = None
    import_seconds: float | None = None
    call_seconds: float | None = None


def measure(
    op: str, dtype: torch.dtype, dtype_name: str, device: torch.device, names: Sequence[str]
) -> Iterator[FirstResult]:
    for name in (peers.OURS, *names):
        with tempfile.TemporaryDirectory(prefix="fastops-bench-") as folder:
            for caches in ("empty", "filled") if peers.may_compile(name) else ("empty",):
                request = {"op": op, "dtype": str(dtype), "device": str(device), "implementation": name}
                answer = _run(request, folder)
                yield FirstResult(op, dtype_name, str(device), name, caches, **answer)
                if "refused" in answer:
                    break


def _run(request: dict[str, str], folder: str) -> dict[str, Any]:
    if reason := peers.lacking(request["implementation"], request["op"], torch.device(request["device"])):
        return {"refused": reason}
    return fresh.answer(_PROGRAM, (request["device"], json.dumps(request)), folder, TIMEOUT)


def child(text: str, fastops_import_seconds: float) -> None:
    """In the fresh process: answers in one line of JSON."""
    request = json.loads(text)
    print(json.dumps(_answer(request, fastops_import_seconds)))


def _answer(request: dict[str, str], fastops_import_seconds: float) -> dict[str, Any]:
    case, device = by_name()[request["op"]], torch.device(request["device"])
    dtype = next(d for d in DTYPES if str(d) == request["dtype"])
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with torch.no_grad(), on_device:
        try:
            # No incoming gradients: their shapes would be asked of fastops, whose first call this may be.
            inputs = InputSet(case.problem(DeviceMake(device, dtype), *SHAPE), ())
            start = time.perf_counter()
            implementation = peers.implementation(request["implementation"], case, device)
            imported = time.perf_counter() - start
            call = call_of(implementation, inputs, "forward")
            _synchronize(device)
            start = time.perf_counter()
            call()
            _synchronize(device)
            called = time.perf_counter() - start
        except Exception as error:  # whatever a peer raises is its refusal
            return {"refused": said(error)}
    if request["implementation"] == peers.OURS:
        imported += fastops_import_seconds
    return {"seconds": imported + called, "import_seconds": imported, "call_seconds": called}


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
