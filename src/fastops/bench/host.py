"""Host time of a call on 16 numbers a tensor, where kernels take no time: Python, checks, dispatch, allocation, launch.

One thread, one process, the implementations in turn; what is shown and compared is the median of the rounds, with the
best kept beside it: where a clock changes within a run one implementation alone may have had the fast moment. On a GPU
the work is only started within the time, and awaited after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..cases import Case
from . import peers
from .problems import Shape, make_sets
from .timing import Sampler, interleaved, repeated
from .work import call_of, said

SHAPE: Shape = (1, 16)
DIRECTIONS = ("forward", "forward+backward")
ROUNDS = 45
_LEAST_SECONDS = 5e-3


@dataclass(frozen=True)
class HostResult:
    op: str
    dtype: str
    device: str
    direction: str  # forward: without gradient
    implementation: str
    refused: str = ""
    microseconds: float | None = None  # the median
    best: float | None = None
    times_fastops: float | None = None


def measure(
    case: Case, dtype: torch.dtype, dtype_name: str, device: torch.device, names: Sequence[str]
) -> Iterator[list[HostResult]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for direction in DIRECTIONS:
            with torch.set_grad_enabled(direction != "forward"):
                results = _direction(case, dtype, dtype_name, device, names, direction)
            yield results
    finally:
        torch.set_num_threads(threads)


def _direction(
    case: Case, dtype: torch.dtype, dtype_name: str, device: torch.device, names: Sequence[str], direction: str
) -> list[HostResult]:
    where = (case.name, dtype_name, str(device), direction)
    try:
        (inputs,) = make_sets(case, dtype, device, SHAPE, 1)
    except Exception as error:
        return [HostResult(*where, peers.OURS, refused=said(error))]
    samplers: dict[str, Sampler] = {}
    refused: dict[str, str] = {}
    for name in (peers.OURS, *names):
        try:
            implementation = peers.implementation(name, case, device)
            implementation.check_direction(direction)
            call = call_of(implementation, inputs, direction)
            for _ in range(3):
                call()
            samplers[name] = repeated(call, _LEAST_SECONDS, after=_await(device))
        except Exception as error:  # whatever a peer raises is its refusal; the run goes on
            refused[name] = said(error)
    times = interleaved(samplers, ROUNDS)
    ours = times.get(peers.OURS)
    results = []
    for name in (peers.OURS, *names):
        if name in refused:
            results.append(HostResult(*where, name, refused=refused[name]))
        else:
            t = times[name]
            ratio = t.median / ours.median if ours else None
            results.append(
                HostResult(*where, name, microseconds=t.median * 1e6, best=t.best * 1e6, times_fastops=ratio)
            )
    return results


def _await(device: torch.device) -> Callable[[], object]:
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
