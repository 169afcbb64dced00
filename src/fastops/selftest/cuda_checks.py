"""What only a GPU can get wrong: the stream, and the capture into a CUDA graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, permutations
from typing import Any

import torch
from torch import Tensor

from ..cases import RawCall
from .accuracy import evaluate, incoming_gradients, tensors_of
from .behind import just_written, just_written_by_ours
from .bits import all_same, other_bits
from .checks import COLUMNS, ROWS, Check, Outcome, same_results
from .forms import Worst, few
from .many_numbers import many_numbers
from .margins import margins
from .reach import one_of_each_rule
from .target import Target

BUSY_CYCLES = 1_000_000  # half a millisecond: far longer than any launch
_MOST_OF_RULES = 1 << 26  # bytes of a tensor


def graph_of_kernels(t: Target) -> Iterator[Outcome]:
    """The raw ops, captured before any of them ran for this dtype, then replayed with other inputs.

    This must be a path's first check: what a first launch sets up must not break a capture.
    """
    wrong = {}
    pairs = [t.case.raw(t.make(seed), ROWS, COLUMNS) for seed in (0, 1)]
    for call, other in zip(*pairs, strict=True):
        static = call.with_args(_copies(call.args))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = static()
        for source in (call, other):
            _refill(static.args, source.args)
            graph.replay()
            if not all_same(outputs, source()):
                wrong[call.op] = call.op
    yield Outcome("CUDA graph of kernels", not wrong, detail=", ".join(wrong))


def graph_of_function(t: Target) -> Iterator[Outcome]:
    """Forward and backward of the public function in one graph."""
    wrong = []
    for sample in t.case.small_samples:
        static = _copies(sample.args(t.path.device, t.dtype))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # torch's GEMM wants its workspace before the capture
            warm = evaluate(t.function, static)
            grads = incoming_gradients(warm.outputs)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = evaluate(t.function, static, grads)
        for seed in (2, 3):
            args = sample.args(t.path.device, t.dtype, seed)
            _refill(static, args)
            graph.replay()
            eager = evaluate(t.function, args, grads)
            if not same_results(captured, eager):
                wrong.append(sample.name)
    yield Outcome("CUDA graph of forward and backward", not wrong, detail=", ".join(wrong))


def side_stream(t: Target) -> Iterator[Outcome]:
    """Inputs appear on a side stream behind a long-running kernel; only work on that very stream sees them.

    A whole run has calls of each rule.
    """
    wrong = {}
    stream = torch.cuda.Stream(t.path.device)
    calls: Iterable[RawCall] = t.raw(ROWS, COLUMNS)
    if not t.quick:
        calls = chain(calls, one_of_each_rule(t, _MOST_OF_RULES))
    for call in calls:
        expected = call()
        late = call.with_args(tuple(_spoiled(x) if isinstance(x, Tensor) else x for x in call.args))
        torch.cuda.synchronize(t.path.device)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(BUSY_CYCLES)
            _refill(late.args, call.args)
            outputs = late()
            copies = [out.clone() for out in outputs]
        stream.synchronize()
        if not all_same(copies, expected):
            wrong[call.op] = call.op
    yield Outcome("side stream", not wrong, detail=", ".join(wrong))


def another_is_current(t: Target) -> Iterator[Outcome]:
    """Of several GPUs, while another than the tensors' is the current one.

    Of cards alike long rows run on both: each has to allow the clusters and their shared memory for itself.
    """
    count = torch.cuda.device_count()
    if count < 2 or not t.first:
        return
    worst = Worst(t, "another GPU is current")
    other = torch.device("cuda", (t.path.device.index + 1) % count)
    alike = torch.cuda.get_device_name(other) == torch.cuda.get_device_name(t.path.device)
    for call in t.case.raw(t.make(), 3, _LONG[-1]) if alike else ():
        here, there = call(), call.with_args(tuple(x.to(other) if isinstance(x, Tensor) else x for x in call.args))()
        worst.expect(all_same(here, (x.to(t.path.device) for x in there)), "other bits there", call.op)
    for form in few(t):
        alone = evaluate(form.ours, form.args)
        with torch.cuda.device(other):
            found = evaluate(form.ours, form.args)
        worst.expect(same_results(found, alone), "other bits", form.text)
    yield worst.outcome()


def after_others(t: Target) -> Iterator[Outcome]:
    """Sums over rows, in chunks whose number a kernel's room on the card decides, of each length behind each other one:
    their bits do not depend on what ran before.
    """
    wrong = set()
    by_op: dict[str, list[RawCall]] = {}
    for n in _LONG:
        calls = {call.op: call for call in reversed(t.case.raw(t.make(), 3, n))}
        for op, call in calls.items():
            fits = op.endswith("_backward") and not call.args_of
            if fits and any(x.numel() for x in _sums(call)):
                by_op.setdefault(op, []).append(call.repeated(_TIMES))
    for op, of_lengths in by_op.items():
        first = [_sums(call) for call in of_lengths]
        found = [(k, _sums(of_lengths[k])) for pair in permutations(range(len(of_lengths)), 2) for k in pair]
        if torch.stack([other_bits(sums, first[k]) for k, sums in found]).any():
            wrong.add(op)
    yield Outcome("same bits after other lengths", not wrong, detail=", ".join(sorted(wrong)))


_LONG, _TIMES = (4096, 8192, 12288, 16384, 24576, 32768), 67


def _sums(call: RawCall) -> list[Tensor]:
    return [x for k, x in enumerate(call()) if k not in call.row_outputs]


def order(t: Target) -> Iterator[Outcome]:
    """Each raw op behind a kernel that has yet to write what it reads, and before others that get that memory.

    Our kernels may start while the one before them ends. One that did not wait would read what was there before, or
    have its inputs overwritten. As they are launched and from a graph, over and over, of two inputs by turns.
    """
    wrong: dict[str, str] = {}
    pairs = (t.case.raw(t.make(seed), *_LARGER) for seed in (0, 1))
    for call, other in zip(*pairs, strict=True):
        both = (call, other)
        expected = [source() for source in both]
        rounds = 1 if t.quick else 20
        found = [just_written(source)() for _ in range(rounds) for source in both]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = [just_written_by_ours(source)() for _ in range(2) for source in both]
        for how, of_all, times in (("launched", found, 1), ("in a graph", captured, rounds)):
            differs = []
            for _ in range(times):
                if of_all is captured:
                    graph.replay()
                differs += [other_bits(outputs, expected[k % 2]) for k, outputs in enumerate(of_all)]
            if torch.stack(differs).any():
                wrong[call.op] = f"{call.op} {how}"
    yield Outcome("order of kernels", not wrong, detail=", ".join(wrong.values()))


_LARGER = (521, 257)  # more blocks than are on a card at once


def _spoiled(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan) if x.is_floating_point() else ~x


def _copies(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in args)


def _refill(args: tuple[Any, ...], values: tuple[Any, ...]) -> None:
    for x, value in zip(tensors_of(args), tensors_of(values), strict=True):
        x.copy_(value)


FIRST: tuple[Check, ...] = (graph_of_kernels,)
CUDA_CHECKS: tuple[Check, ...] = (
    graph_of_function,
    side_stream,
    another_is_current,
    after_others,
    order,
    margins,
    many_numbers,
)
