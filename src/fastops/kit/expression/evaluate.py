"""Expressions by torch's own functions: the reference, and what runs where nothing is compiled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .emit import statements
from .nodes import Node, as_real, names


def evaluate(nodes: Sequence[Node], values: Mapping[str, Tensor | float]) -> tuple[Tensor, ...]:
    """The value of each node, where the names have ``values``; see :func:`torch_function`."""
    return torch_function(tuple(nodes), tuple(values))(*values.values())


_compiling = torch.compiler.is_dynamo_compiling


@functools.lru_cache(maxsize=1024)
def torch_function(nodes: tuple[Node, ...], parameters: tuple[str, ...]) -> Callable[..., tuple[Tensor, ...]]:
    """``nodes`` as a Python function of ``parameters``, tensors or floats, that calls torch's functions.

    torch differentiates, batches and traces it; what ``torch.compile`` is to trace must be made before. Computed and
    returned in the dtype that the tensors promote to, float32 for the half types, the default dtype for integers;
    outputs have the shape that the operands broadcast to, so that a constant has none.
    """
    missing = frozenset().union(*map(names, nodes)) - set(parameters)
    if missing:
        raise ValueError(f"expected a value for {', '.join(sorted(missing))}, got {', '.join(parameters)}")
    position = {name: k for k, name in enumerate(parameters)}
    lines, results = statements(
        map(as_real, nodes),
        lambda value: f"number({value!r})",
        lambda name: f"value_{position[name]}",
        lambda node, result, operands: f"{result} = {node.function.torch.format(*operands)}",
    )
    head = f"def function({', '.join(['number', *(f'value_{k}' for k in position.values())])}):"
    body = [*lines, f"return ({' '.join(f'{result},' for result in results)})"]
    scope: dict[str, Any] = {"torch": torch, "inf": float("inf"), "nan": float("nan")}
    exec("\n    ".join([head, *body]), scope)
    function = scope["function"]

    def call(*values: Tensor | float) -> tuple[Tensor, ...]:
        dtype, device = _computed_in(values)

        def number(value: float) -> Tensor:
            # No Python number: beside a truth value it would have the default dtype.
            if abs(value) > torch.finfo(dtype).max:
                value = math.copysign(math.inf, value)
            return torch.full((), value, dtype=dtype, device=device)

        def scalar(value: float) -> Tensor:
            if not (_compiling() or isinstance(value, (torch.SymInt, torch.SymFloat))):
                return number(value)
            # No question is asked of the value, which may be a symbol: the answer would be a guard, and each value a
            # graph. A product is what Inductor knows how to compute of one.
            return (torch.ones((), dtype=torch.float64, device=device) * value).to(dtype)

        operands = [cast(x, dtype) if isinstance(x, Tensor) else scalar(x) for x in values]
        return function(number, *operands)

    return call


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """``x.to(dtype)``, without a call that would return ``x``.

    Dynamo of torch 2.11 takes that for one output more of an autograd.Function, and the gradient goes to it.
    """
    return x if x.dtype == dtype else x.to(dtype)


def _computed_in(values: Sequence[Tensor | float]) -> tuple[torch.dtype, torch.device]:
    tensors = [x for x in values if isinstance(x, Tensor)]
    if not tensors:
        return torch.float64, torch.device("cpu")
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in tensors])
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    elif not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    others = [x.device for x in tensors if x.device.type != "cpu"]  # a tensor without dimensions may be the CPU's
    return dtype, others[0] if others else tensors[0].device
