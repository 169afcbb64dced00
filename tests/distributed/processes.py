"""Processes of gloo or NCCL, and an operator on DTensors of theirs beside the same on one process in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from fastops.selftest.distributed.processes import start
from fastops.selftest.distributed.tensors import Placements, placed, whole

__all__ = [
    "DEVICES",
    "Function",
    "Placements",
    "agree",
    "check_close",
    "device_type",
    "mesh_of",
    "numbers",
    "on",
    "placed",
    "run",
    "spawn",
    "whole",
]

Function = Callable[..., Any]


def on(device: str, processes: int, *values: Any) -> Any:
    """A parameter of a test, which is skipped where there is no group of so many processes."""
    if device == "cpu":
        there, what = distributed.is_gloo_available(), "gloo"
    else:
        there, what = distributed.is_nccl_available() and torch.cuda.device_count() >= processes, f"{processes} GPUs"
    marks = [pytest.mark.skipif(not there, reason=f"needs {what}"), *([pytest.mark.cuda] if device == "cuda" else [])]
    return pytest.param(device, *values, marks=marks, id="-".join([device, *map(_name, values)]))


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value))


DEVICES = [on("cpu", 2), on("cuda", 2)]


def spawn(run: Callable[[int], None], processes: int, folder: Path, device: str = "cpu") -> None:
    """``run(rank)`` in as many processes, which are of one group: of gloo, or of NCCL with a GPU for each."""
    context = start(run, processes, folder, device=device, preload=["pytest"])
    while not context.join():
        pass


def device_type() -> str:
    """Of this process's group, if it is of one."""
    return "cuda" if distributed.is_initialized() and "nccl" in str(distributed.get_backend_config()) else "cpu"


def mesh_of(*shape: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
    return init_device_mesh(device_type(), shape, mesh_dim_names=names)


def numbers(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Result(NamedTuple):
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]
    forward: int  # collectives
    backward: int


class _Uncounted(contextlib.AbstractContextManager[Any]):
    def __exit__(self, *raised: object) -> None: ...

    def get_total_counts(self) -> int:
        return -1


def run(
    function: Function,
    inputs: Sequence[Any],
    needs: Sequence[bool],
    mesh: DeviceMesh | None = None,
    *,
    counted: bool = True,
) -> Result:
    """The outputs, and the gradients of what ``needs`` names for incoming gradients that are the same everywhere."""
    counter: Callable[[], Any] = CommDebugMode if counted else _Uncounted
    given = [
        x.detach().requires_grad_(need) if isinstance(x, Tensor) and need else x
        for x, need in zip(inputs, needs, strict=True)
    ]
    with counter() as forward:
        found = function(*given)
    outputs = tuple(y for y in (found if isinstance(found, tuple) else (found,)) if y is not None)
    learning = [x for x, need in zip(given, needs, strict=True) if need]
    grads = []
    reached = [y for y in outputs if y.requires_grad]  # a sum is no function of the weight
    for k, y in enumerate(reached):
        grad = numbers(y.shape, 100 + k, y.dtype).to(y.device)
        if mesh is not None and isinstance(y, DTensor):
            grad = distribute_tensor(grad, mesh, [Replicate() if p.is_partial() else p for p in y.placements])
        grads.append(grad)
    gradients: tuple[Any, ...] = ()
    with counter() as backward:
        if learning:
            gradients = torch.autograd.grad(reached, learning, grads)
    counts = forward.get_total_counts(), backward.get_total_counts()
    return Result(tuple(y.detach() for y in outputs), gradients, *counts)


def check_close(what: str, found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected), what
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        a, b = whole(a).cpu(), b.cpu()
        assert a.shape == b.shape, f"{what}: {k} has shape {list(a.shape)}, expected {list(b.shape)}"
        error = (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
        size = max(1.0, b.abs().max().item()) if b.numel() else 1.0
        assert error <= tolerance * size, f"{what}: {k} is off by {error}"


def agree(
    what: str,
    function: Function,
    inputs: Sequence[Any],
    placements: Sequence[Placements | None],
    mesh: DeviceMesh,
    needs: Sequence[bool],
    *,
    forward: int | None = None,
    backward: int | None = None,
) -> Result:
    """Holds a call on DTensors to the same in float64. ``forward`` and ``backward``: collectives at most."""
    spread = [placed(x, mesh, p) if p is not None else x for x, p in zip(inputs, placements, strict=True)]
    found = run(function, spread, needs, mesh)
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    expected = run(function, wide, needs)
    check_close(f"{what} output", found.outputs, expected.outputs)
    check_close(f"{what} gradient", found.gradients, expected.gradients)
    for name, count, most in (("forward", found.forward, forward), ("backward", found.backward, backward)):
        assert most is None or count <= most, f"{what}: {count} collectives {name}, expected {most} at most"
    return found
