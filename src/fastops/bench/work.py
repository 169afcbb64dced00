"""One implementation of an op, and its forward, backward or both as a call without arguments.

All implementations do the same work: in backward and in both, gradients for every floating-point tensor argument, input
and parameters, from the same incoming gradients, by ``torch.autograd.grad``, which accumulates into no ``.grad``. An
implementation that leaves one out is refused, and so is one whose results are others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .problems import LINEAR_LOSSES, InputSet, as_tuple

DIRECTIONS = ("forward", "backward", "forward+backward")

# Of the norm of the difference over the norm: room for another order of sums and for rounding in between.
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float32: 1e-4, torch.float64: 1e-9}


def directions_of(op: str) -> tuple[str, ...]:
    """Some losses of a linear layer have their gradients from the forward on, so that a backward alone says nothing."""
    return ("forward", "forward+backward") if op in LINEAR_LOSSES else DIRECTIONS


class RefusedError(Exception):
    """An implementation does not do this case; the text says why."""


@dataclass(frozen=True)
class Implementation:
    name: str
    function: Callable[..., Any]
    arguments: Callable[..., tuple[Any, ...]] = lambda *args: args  # the op's to the function's own, not timed
    no_gradient: str = ""  # why it has none
    floor: bool = False  # a part of the work that none can leave out, by function(direction, *args)

    def check_direction(self, direction: str) -> None:
        if direction != "forward" and self.no_gradient:
            raise RefusedError(self.no_gradient)


def call_of(implementation: Implementation, inputs: InputSet, direction: str) -> Callable[[], Any]:
    """What is timed; to be called under ``torch.no_grad()`` for forward.

    Backward keeps its graph, since it runs more than once. Both returns the outputs too, which the next layer would
    read.
    """
    function = implementation.function
    if implementation.floor:
        return partial(function, direction, *inputs.args)
    if direction == "forward":
        return partial(function, *implementation.arguments(*inputs.args))

    def leaf(at: int, a: Any) -> Any:
        learns = isinstance(a, Tensor) and a.is_floating_point() and at not in inputs.constants
        return a.detach().requires_grad_() if learns else a

    args = tuple(leaf(at, a) for at, a in enumerate(inputs.args))
    leaves = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    own = implementation.arguments(*args)
    if direction == "backward":
        outputs = as_tuple(function(*own))
        return partial(torch.autograd.grad, outputs, leaves, inputs.incoming, retain_graph=True)

    def both() -> tuple[Any, tuple[Tensor, ...]]:
        outputs = function(*own)
        return outputs, torch.autograd.grad(as_tuple(outputs), leaves, inputs.incoming)

    return both


def results_of(result: Any, direction: str) -> tuple[Tensor, ...]:
    """The tensors to compare: outputs of forward, gradients of the others."""
    return as_tuple(result[1] if direction == "forward+backward" else result)


def said(error: BaseException) -> str:
    """Why something was refused: a refusal's own text, or any other exception in one line."""
    if isinstance(error, RefusedError):
        return str(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def check_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    if len(found) != len(expected):
        raise RefusedError(f"gives {len(found)} tensors, fastops {len(expected)}")
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape:
            raise RefusedError(f"result {k} has shape {list(a.shape)}, fastops' {list(b.shape)}")
        a, b = a.double(), b.double()
        error = ((a - b).norm() / b.norm().clamp_min(1e-300)).item()
        if not error <= TOLERANCE[dtype]:
            raise RefusedError(f"result {k} differs from fastops': |difference| / |fastops| = {error:.2g}")
