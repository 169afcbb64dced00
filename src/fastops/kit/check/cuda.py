"""What has to hold on a GPU besides."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, Skip, mapped
from .compare import apart, told

_LATE = 100_000_000  # cycles; tens of milliseconds


def against_cpu(case: Case) -> str:
    if "CPU" in case.unsupported:
        raise Skip("the op does not take CPU tensors")
    found = [y.cpu() for y in case.everything(case.args)]
    return told(apart(found, case.everything(case.moved("cpu"))))


def side_stream(case: Case) -> str:
    """The values arrive late on a stream that no other waits for: a kernel elsewhere reads what was there before."""
    expected = case.everything(case.args)
    late = mapped(torch.zeros_like, case.args)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        torch.cuda._sleep(_LATE)
        _fill(late, case.args)
        found = case.everything(late)
        torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    return told(apart(found, expected))


def graph(case: Case) -> str:
    """Captured with zeros and replayed with the sample."""
    static = mapped(torch.zeros_like, case.args)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        case.everything(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = case.everything(static)
    _fill(static, case.args)
    graph.replay()
    torch.cuda.synchronize()
    return f"captured and replayed: {told(apart(found, case.everything(case.args)))}"


def second_gpu(case: Case) -> str:
    if torch.cuda.device_count() < 2:
        raise Skip("one GPU")
    expected = case.everything(case.args)
    other = f"cuda:{1 - (case.device.index or 0)}"
    found = case.everything(case.moved(other))
    if any(y.device != torch.device(other) for y in found):
        raise AssertionError(f"the outputs must be on {other}, got {', '.join(str(y.device) for y in found)}")
    return f"{other}: {told(apart([y.to(case.device) for y in found], expected))}"


def _fill(tensors: tuple[object, ...], values: tuple[object, ...]) -> None:
    for x, value in zip(tensors, values, strict=True):
        if isinstance(x, Tensor) and isinstance(value, Tensor):
            x.copy_(value)
