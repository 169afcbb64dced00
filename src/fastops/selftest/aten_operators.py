"""The aten operators that torch's functions are made of, each by itself, as graphs and other libraries call them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..cases.inputs import DTYPES
from ..overrides import enabled
from .accuracy import evaluate, incoming_gradients, near
from .aten_case import function_of
from .checks import Outcome
from .dispatched import Calls, Dispatched
from .forms import Form, Worst, few, of_calls, subsets
from .refusals import error_of
from .target import Target
from .transforms import layout


def as_atens(t: Target) -> Iterator[Outcome]:
    """Each aten operator by itself, as graphs and other libraries call it: results of its shapes, dtypes and strides,
    those that nobody reads among them.
    """
    worst, seen = Worst(t, "aten's operators by themselves"), set[str]()
    there = _names(t)
    for form in chain(of_calls(t), few(t)):
        for learn in subsets(form.learnable):
            with enabled(function_of(t)), Calls() as calls:
                outputs = form.ours(*(x.detach().requires_grad_(k in learn) for k, x in enumerate(form.args)))
                if learn:
                    torch.autograd.backward(outputs, incoming_gradients(outputs))
            for call in calls.of(*there):
                seen.add(call.name)
                if error_of(call.again):  # aten does not take them
                    continue
                expected = call.again()
                with enabled(function_of(t)):
                    found = call.again()
                where = f"{call.name} of {form.text} with gradients of {[form.names[k] for k in learn]}"
                worst.expect(_described(found) == _described(expected), "another shape, dtype or stride", where)
                worst.expect(near(found, expected, t.dtype), "other numbers", where)
    worst.expect(seen == {*there}, "not called", ", ".join({*there} - seen))
    yield worst.outcome()


def _described(results: tuple[Tensor | None, ...]) -> list[Any]:
    return [x if x is None else layout(x) for x in results]


def of_two_dtypes(t: Target) -> Iterator[Outcome]:
    """Of parameters of another dtype, which torch's function need not hand to its operator."""
    worst = Worst(t, "aten's operators of two dtypes")
    for form, call in _forwards(t):
        for k, dtype in product(range(1, len(form.args)), DTYPES):
            other = form.with_arg(k, form.args[k].to(dtype))
            by_itself = partial(evaluate, lambda *given: _of(call, given).again()[0], other.args)  # noqa: B023
            if error_of(by_itself):  # aten's does not take them
                continue
            described = [_described(_of(call, other.args).again())]
            with enabled(function_of(t)):
                described.append(_described(_of(call, other.args).again()))
                found = by_itself()
            truth = other.truth(incoming_gradients(found.outputs))
            close = near(found.outputs + found.gradients, truth.outputs + truth.gradients, t.dtype)
            where = f"{call.name} of {form.text}, {form.names[k]} of {dtype}"
            worst.expect(close, "other numbers", where)
            worst.expect(described[0] == described[1], "another shape, dtype or stride", where)
    yield worst.outcome()


def _forwards(t: Target) -> Iterator[tuple[Form, Dispatched]]:
    """The table's calls, without optional tensors too, and the call of aten's operator that each is made of."""
    for form in of_calls(t):
        with enabled(function_of(t)), Calls() as calls:
            form.ours(*form.args)
        yield from ((form, call) for call in calls.of(*_names(t))[:1])


def _names(t: Target) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in _C.overridden()[function_of(t)])


def _of(call: Dispatched, tensors: Sequence[Tensor]) -> Dispatched:
    """With these in place of its tensors."""
    given = iter(tensors)
    return call._replace(args=tuple(next(given) if isinstance(x, Tensor) else x for x in call.args))
