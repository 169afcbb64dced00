"""kit.elementwise: a differentiable elementwise op from an expression."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._operator import Differentiable
from . import expression
from .errors import ExpressionError
from .expression import Node
from .expression.nodes import name as name_node, number
from .pointwise import Pointwise, pointwise
from .source import STRIDED, VECTORS
from .program import DTYPES, promoted

_ZERO = number(0.0)
_compiling = torch.compiler.is_dynamo_compiling


class _Gradient(NamedTuple):
    """The gradients of some of a program's tensors, as a function of the outputs' gradients and what is kept."""

    call: Callable[..., Any]
    program: Pointwise
    inputs: tuple[int, ...]  # which are kept
    outputs: tuple[int, ...]


def _names(base: str, count: int, taken: Sequence[str]) -> tuple[str, ...]:
    """``grad``, or ``grad0, grad1`` for several, with underscores behind them as long as one is taken."""
    names = (base,) if count == 1 else tuple(f"{base}{k}" for k in range(count))
    return names if not set(names) & set(taken) else _names(base + "_", count, taken)


def _chain(nodes: Sequence[Node], grads: Sequence[str], tensor: str) -> Node:
    terms = [name_node(g) * d for node, g in zip(nodes, grads, strict=True) if (d := expression.derivative(node, tensor)) is not _ZERO]
    return sum(terms[1:], terms[0]) if terms else _ZERO


def _gradient(program: Pointwise, given: Sequence[Node] | None, wanted: Sequence[int]) -> _Gradient:
    taken = program.tensors + program.scalars
    grads = _names("grad", program.outputs, taken)
    outs = _names("out", program.outputs, taken)
    if given is None:
        nodes = [_chain(program.nodes, grads, program.tensors[k]) for k in wanted]
    else:
        nodes = [given[k] for k in wanted]
    used = frozenset().union(*map(expression.names, nodes))
    inputs = tuple(k for k, name in enumerate(program.tensors) if name in used)
    outputs = tuple(k for k, name in enumerate(outs) if name in used)
    tensors = [*grads, *(program.tensors[k] for k in inputs), *(outs[k] for k in outputs)]
    backward = pointwise(f"{program.name}_backward", tensors, program.scalars, nodes)
    return _Gradient(differentiable(backward).call, backward, inputs, outputs)


def differentiable(program: Pointwise, given: Sequence[Node] | None = None, *, ahead: bool = False) -> Differentiable:
    """The program with its derivative.

    Args:
        program: the function.
        given: its derivative, an expression a tensor; else it is derived.
        ahead: make the derivative by all tensors now; ``torch.compile`` takes that, and can make none.
    """
    count = len(program.tensors)
    everything = tuple(range(count))
    made: dict[tuple[int, ...], _Gradient] = {}

    def of(wanted: tuple[int, ...]) -> _Gradient:
        if wanted not in made:
            made[wanted] = _gradient(program, given, wanted)
        return made[wanted]

    def choose(ctx: Any) -> tuple[int, ...]:
        return everything if _compiling() else tuple(k for k in everything if ctx.needs_input_grad[k])

    def save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        gradient = of(choose(ctx))
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        ctx.scalars = inputs[count:]
        ctx.like = [(x.shape, x.dtype) for x in inputs[:count]]
        ctx.save_for_backward(*[inputs[k] for k in gradient.inputs], *[outputs[k] for k in gradient.outputs])

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        wanted = choose(ctx)
        found = of(wanted).call(*grads, *ctx.saved_tensors, *ctx.scalars)
        result: list[Tensor | None] = [None] * (count + len(ctx.scalars))
        for k, gradient in zip(wanted, found if isinstance(found, tuple) else (found,), strict=True):
            shape, dtype = ctx.like[k]
            if gradient.shape != shape:
                gradient = gradient.sum_to_size(shape)
            result[k] = gradient if gradient.dtype == dtype else gradient.to(dtype)
        return tuple(result)

    def batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
        tensors = [x if d is None else x.movedim(d, 0) for x, d in zip(inputs[:count], in_dims, strict=False)]
        rank = max(x.dim() - (d is not None) for x, d in zip(tensors, in_dims, strict=False))
        for k, d in enumerate(in_dims[:count]):
            if d is not None:
                x = tensors[k]
                tensors[k] = x.reshape(size, *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
        return *tensors, *inputs[count:]

    if ahead:
        of(everything)
    return Differentiable(
        program.name,
        program.raw,
        program.reference,
        save=save,
        backward=backward,
        outputs=program.outputs,
        batch=batch,
        inline=True,
    )


class Elementwise:
    """What :func:`elementwise` returns."""

    def __init__(self, signature: expression.Signature, nodes: Sequence[Node], given: Sequence[Node] | None) -> None:
        self.name = self.__name__ = signature.name
        self.tensors, self.scalars = signature.tensors, dict(signature.scalars)
        self.program = pointwise(signature.name, self.tensors, tuple(self.scalars), nodes)
        self._call = differentiable(self.program, given, ahead=True).call
        self._count = len(self.tensors)
        self._defaults = tuple(self.scalars.values())

    def __call__(self, *tensors: Tensor, **scalars: float) -> Any:
        extra = self._scalars(scalars) if scalars else self._defaults
        if len(tensors) != self._count:
            raise TypeError(f"[{self.name}] takes {self._count} tensors ({', '.join(self.tensors)}), got {len(tensors)}")
        return self._call(*tensors, *extra)

    def _scalars(self, given: dict[str, float]) -> tuple[float, ...]:
        for name in given:
            if name not in self.scalars:
                raise TypeError(f"[{self.name}] takes no argument {name}")
        return tuple(given.get(name, default) for name, default in self.scalars.items())


def elementwise(signature: str, body: str | None = None, *, backward: str | None = None) -> Any:
    parsed = expression.parse_signature(signature)
    names = (*parsed.tensors, *parsed.scalars)
    nodes = expression.parse(body, names)
    given = None
    if backward is not None:
        given = expression.parse(backward, (*names, *_names("grad", len(nodes), names), *_names("out", len(nodes), names)))
    return Elementwise(parsed, nodes, given)
