"""The aten operators that torch's functions are made of, each by itself, as graphs and other libraries call them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _C
from ..cases.inputs import DTYPES
from ..overrides import enabled
from .accuracy import evaluate, incoming_gradients
from .aten_case import function_of
from .checks import Outcome
from .forms import Form, Worst, few, of_calls, subsets, table
from .refusals import error_of
from .target import Target
from .together import on_cpu

_ROUNDINGS = 16  # by which two computations of one result differ at most


class _Recorded(NamedTuple):
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> tuple[Any, ...]:
        out = self.operator(*self.args, **self.kwargs)
        return tuple(out) if isinstance(out, tuple | list) else (out,)


class _Recording(TorchDispatchMode):
    """The calls of aten's operators that a function is made of."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self._names, self.calls = tuple(f"aten.{name}" for name in _C.overridden()[function]), list[_Recorded]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func.overloadpacket) in self._names:
            self.calls.append(_Recorded(func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def as_atens(t: Target) -> Iterator[Outcome]:
    """Each aten operator by itself, as graphs and other libraries call it: results of its shapes, dtypes and strides,
    those that nobody reads among them.
    """
    worst, seen = Worst(t, "aten's operators by themselves"), set[str]()
    for form in chain(of_calls(t), few(t)):
        for learn in subsets(form.learnable):
            with enabled(function_of(t)), _Recording(function_of(t)) as recording:
                outputs = form.ours(*(x.detach().requires_grad_(k in learn) for k, x in enumerate(form.args)))
                if learn:
                    torch.autograd.backward(outputs, incoming_gradients(outputs))
            for call in recording.calls:
                seen.add(str(call.operator))
                if error_of(call):  # aten has no such kernel there
                    continue
                expected = call()
                with enabled(function_of(t)):
                    found = call()
                where = f"{call.operator} of {form.text} with gradients of {[form.names[k] for k in learn]}"
                worst.expect(_described(found) == _described(expected), "another shape, dtype or stride", where)
                worst.expect(near(t, found, expected), "other numbers", where)
    there = {f"aten.{name}.default" for name in _C.overridden()[function_of(t)]}
    worst.expect(seen == there, "not called", ", ".join(sorted(there - seen)))
    yield worst.outcome()


def _described(results: tuple[Tensor | None, ...]) -> list[Any]:
    """Of a dimension of one the stride says nothing."""
    return [
        x if x is None else (x.dtype, x.shape, tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1))
        for x in results
    ]


def near(t: Target, found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> bool:
    """But for a few roundings of the coarsest dtype in it, in which torch's own functions may round in between."""
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    least = max(torch.finfo(x.dtype).eps for x in (torch.empty(0, dtype=t.dtype), *(a for a, _ in pairs)))
    for a, b in zip(*map(on_cpu, zip(*pairs, strict=True)), strict=True):
        size = float(b.abs().max()) if b.numel() else 0.0
        if not torch.allclose(a.double(), b.double(), rtol=_ROUNDINGS * least, atol=_ROUNDINGS * least * size):
            return False
    return True


def of_two_dtypes(t: Target) -> Iterator[Outcome]:
    """Of parameters of another dtype, which torch's function need not hand to its operator."""
    worst = Worst(t, "aten's operators of two dtypes")
    for form, call in _forwards(t):
        for k, dtype in product(range(1, len(form.args)), DTYPES):
            other = form.with_args((*form.args[:k], form.args[k].to(dtype), *form.args[k + 1 :]))
            if error_of(partial(other.ours, *other.args)):
                continue
            with enabled(function_of(t)):
                found = evaluate(partial(_by_itself, call), other.args)
            truth = other.truth(incoming_gradients(found.outputs))
            close = near(t, found.outputs + found.gradients, truth.outputs + truth.gradients)
            worst.expect(close, "other numbers", f"{call.operator} of {form.text}, {form.names[k]} of {dtype}")
    yield worst.outcome()


def _forwards(t: Target) -> Iterator[tuple[Form, _Recorded]]:
    """The table's calls, and the call of aten's operator that each is made of."""
    for form in table(t):
        with enabled(function_of(t)), _Recording(function_of(t)) as recording:
            form.ours(*form.args)
        yield from ((form, call) for call in recording.calls[:1])


def _by_itself(call: _Recorded, *tensors: Tensor) -> Tensor:
    given = iter(tensors)
    args = tuple(next(given) if isinstance(x, Tensor) else x for x in call.args)
    result: Tensor = call._replace(args=args)()[0]
    return result
