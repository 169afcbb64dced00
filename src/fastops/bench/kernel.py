"""Time of one call on large inputs: on a GPU of its kernels alone, on the CPU of the whole call.

On a GPU see ``cuda_graph``, and of losses of a linear layer, whose calls are whole there too, ``cuda_events``. On the
CPU the inputs are one set, which may stay in the caches, and each implementation is timed twice: with recycled memory
for what it allocates, and with fresh memory, whose pages are filled at first touch.

A copy is measured the same way: on a GPU a large one, once; on the CPU one of as many bytes, beside each case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import Case
from . import memory, peers
from .cuda_events import Events
from .cuda_graph import Replay
from .problems import LINEAR_LOSSES, InputSet, Shape, make_sets, sets_needed
from .timing import Sampler, Statistics, interleaved, repeated, single
from .traffic import backward_bytes, forward_bytes
from .work import DIRECTIONS, Implementation, call_of, check_same, directions_of, results_of, said

COPY_BYTES = 2**30  # read and written, of the large copy
_LEAST_SECONDS = 2e-3  # of a sample on the CPU: far above the clock's step
_COPY = "copy"


@dataclass(frozen=True)
class Result:
    """One line of the results. Times in microseconds, rates in 1e9 bytes a second."""

    op: str
    dtype: str
    device: str
    rows: int
    columns: int
    direction: str
    implementation: str
    refused: str = ""  # the reason; nothing else is filled in then
    microseconds: float | None = None  # median
    low: float | None = None  # quartiles
    high: float | None = None
    bytes: int | None = None  # the fewest that must move
    gigabytes_per_second: float | None = None
    copy_gigabytes_per_second: float | None = None
    share_of_copy: float | None = None  # of an op that is not its matrix products
    times_fastops: float | None = None  # time over fastops'
    fresh_microseconds: float | None = None  # CPU: with page faults
    page_faults: int | None = None  # CPU: of a call with recycled memory
    fresh_page_faults: int | None = None
    peak_bytes: int | None = None  # GPU: most memory that a call takes beyond its inputs
    sets: int | None = None
    cold: bool | None = None  # the sets together overflow the cache
    in_features: int | None = None  # where the shape says so; else as many as columns, or the op has none


@dataclass(frozen=True)
class Times:
    """Of one implementation; all but the first on the CPU alone."""

    recycled: Statistics
    fresh: Statistics | None = None
    page_faults: int | None = None
    fresh_page_faults: int | None = None


@dataclass(frozen=True)
class Prepared:
    """An implementation that did its work once and gave the right results."""

    call: Callable[[], Any]
    sampler: Sampler | None  # on a GPU
    peak_bytes: int | None


def measure(
    case: Case, dtype: torch.dtype, dtype_name: str, device: torch.device, shape: Shape, names: Sequence[str]
) -> Iterator[list[Result]]:
    """Of each direction the results, fastops first, then the peers."""
    rows, *between, columns = shape
    in_features = between[0] if between else None
    result = functools.partial(Result, case.name, dtype_name, str(device), rows, columns, in_features=in_features)
    try:
        sets, cold = sets_needed(case, dtype, device, shape)
        inputs = make_sets(case, dtype, device, shape, sets)
        sizes = fewest_bytes(case, inputs[0])
    except Exception as error:  # too large for the memory, say; the next shape may be smaller
        for direction in directions_of(case.name):
            yield [result(direction, peers.OURS, refused=said(error))]
        return
    for direction in directions_of(case.name):
        size = sizes[direction]
        with torch.set_grad_enabled(direction != "forward"), peers.kept_graph(direction):
            prepared, refused = _prepare_all(case, dtype, device, inputs, direction, names)
            times = _times(prepared, device, size)
        ours = times.get(peers.OURS)
        copy_rate = _large_copy(device) if device.type == "cuda" else size / times[_COPY].recycled.median / 1e9
        results = []
        for name in (peers.OURS, *names):
            if name in refused:
                results.append(result(direction, name, refused=refused[name]))
                continue
            t = times[name]
            rate = size / t.recycled.median / 1e9
            results.append(
                result(
                    direction,
                    name,
                    microseconds=t.recycled.median * 1e6,
                    low=t.recycled.low * 1e6,
                    high=t.recycled.high * 1e6,
                    bytes=size,
                    gigabytes_per_second=rate,
                    copy_gigabytes_per_second=copy_rate,
                    share_of_copy=None if case.name in LINEAR_LOSSES else rate / copy_rate,
                    times_fastops=t.recycled.median / ours.recycled.median if ours else None,
                    fresh_microseconds=t.fresh.median * 1e6 if t.fresh else None,
                    page_faults=t.page_faults,
                    fresh_page_faults=t.fresh_page_faults,
                    peak_bytes=prepared[name].peak_bytes,
                    sets=sets,
                    cold=cold,
                )
            )
        del prepared
        if device.type == "cuda":
            torch.cuda.empty_cache()
        yield results


def fewest_bytes(case: Case, inputs: InputSet) -> dict[str, int]:
    """Of each direction, see ``traffic``."""
    ours = Implementation(peers.OURS, case.function)
    outputs, gradients = call_of(ours, inputs, "forward+backward")()
    outputs = results_of(outputs, "forward")
    forward = forward_bytes(inputs.args, outputs)
    backward = backward_bytes(case, inputs.args, outputs, inputs.incoming, gradients)
    return dict(zip(DIRECTIONS, (forward, backward, forward + backward), strict=True))


def _prepare_all(
    case: Case,
    dtype: torch.dtype,
    device: torch.device,
    inputs: list[InputSet],
    direction: str,
    names: Sequence[str],
) -> tuple[dict[str, Prepared], dict[str, str]]:
    prepared: dict[str, Prepared] = {}
    refused: dict[str, str] = {}
    expected: tuple[Tensor, ...] | None = None
    for name in (peers.OURS, *names):
        try:
            implementation = peers.implementation(name, case, device)
            implementation.check_direction(direction)
            replayed = device.type == "cuda" and case.name not in LINEAR_LOSSES
            stream = torch.cuda.Stream(device) if replayed else None
            with torch.cuda.stream(stream) if stream else nullcontext():
                if stream:
                    stream.wait_stream(torch.cuda.default_stream(device))
                calls = [call_of(implementation, one, direction) for one in inputs]
                if not implementation.floor:
                    found = results_of(calls[0](), direction)
                    if expected is None:
                        expected = found
                    else:
                        check_same(found, expected, dtype)
                    del found
                calls[0]()
                peak = None if implementation.floor else memory.peak_bytes(calls[0], device)
            prepared[name] = Prepared(calls[0], _sampler(calls, device, stream), peak)
        except Exception as error:  # whatever a peer raises is its refusal; the run goes on
            refused[name] = said(error)
    return prepared, refused


def _sampler(
    calls: Sequence[Callable[[], object]], device: torch.device, stream: torch.cuda.Stream | None
) -> Sampler | None:
    if device.type != "cuda":
        return None
    return Replay(calls, stream) if stream else Events(calls)


def _times(prepared: dict[str, Prepared], device: torch.device, size: int) -> dict[str, Times]:
    if device.type == "cuda":
        samplers = {name: p.sampler for name, p in prepared.items() if p.sampler}
        return {name: Times(t) for name, t in interleaved(samplers).items()}
    calls = {name: p.call for name, p in prepared.items()} | {_COPY: _copy(size)}
    _settle(calls)  # before the number of calls is chosen, which a page fault would make few
    recycled = interleaved({name: repeated(call, _LEAST_SECONDS) for name, call in calls.items()})
    faults = {name: memory.page_faults(p.call) for name, p in prepared.items()}
    fresh = interleaved({name: single(p.call, memory.give_back) for name, p in prepared.items()})
    times = {_COPY: Times(recycled[_COPY])}
    for name, p in prepared.items():
        memory.give_back()
        times[name] = Times(recycled[name], fresh[name], faults[name], memory.page_faults(p.call))
    return times


def _settle(calls: dict[str, Callable[[], object]], rounds: int = 10) -> None:
    """Untimed rounds until one touches no new page: the allocator then has a place for what each call needs."""
    for _ in range(rounds):
        if not memory.page_faults(lambda: [call() for call in calls.values()]):
            break


def _copy(size: int, device: torch.device | str = "cpu") -> Callable[[], object]:
    """A copy that reads and writes ``size`` bytes in all, into memory that is there already."""
    source = torch.randn(max(size // 8, 1), device=device)
    target = torch.empty_like(source)
    if source.is_cuda:
        # A large copy_ in a CUDA graph goes to the copy engine, which moves two thirds of what a kernel does.
        return lambda: torch.mul(source, 1.0, out=target)
    return lambda: target.copy_(source)


@functools.cache
def _large_copy(device: torch.device) -> float:
    """The copy bandwidth of a GPU, in 1e9 bytes a second, read and written."""
    size = min(COPY_BYTES, torch.cuda.get_device_properties(device).total_memory // 16)
    stream = torch.cuda.Stream(device)
    sample = Replay([_copy(size, device) for _ in range(2)], stream)
    return size // 8 * 8 / interleaved({_COPY: sample})[_COPY].median / 1e9
