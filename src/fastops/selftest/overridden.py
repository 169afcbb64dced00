"""Calls that torch hands on: under a mode of functions, as ``torch.set_default_device`` is one, and of subclasses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

from .accuracy import evaluate, incoming_gradients
from .checks import Outcome, same_results
from .forms import Form, Worst, few, of_calls, of_samples
from .target import Target


class _Subclass(Tensor):
    pass


class _Seen(TorchFunctionMode):
    """The arguments with which a function is handed on."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self._function, self.arguments = function, dict[str, Any]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is self._function:
            bound = inspect.signature(function).bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            self.arguments = bound.arguments
        return function(*args, **(kwargs or {}))


def overridden(t: Target) -> Iterator[Outcome]:
    """All arguments arrive: they themselves, and the bits of the call by itself."""
    if not t.first:
        return
    worst = Worst(t, "under a mode, and of a subclass")
    for form in chain(few(t), of_calls(t)):
        alone = evaluate(form.ours, form.args)
        with BaseTorchFunctionMode():
            found = evaluate(form.ours, form.args)
        worst.expect(same_results(found, alone), "other bits", f"{form.text} under a mode")
        found = evaluate(lambda *args: _of_subclass(form, args), form.args)  # noqa: B023
        worst.expect(same_results(found, alone), "other bits", f"{form.text} of a subclass")
        with torch.device("meta"):
            found = evaluate(form.ours, form.args, incoming_gradients(alone.outputs))
        worst.expect(same_results(found, alone), "other bits", f"{form.text} where another device is the default")
        with _Seen(t.case.function) as seen:
            form.ours(*form.args)
        lost = [name for name, x in form.arguments.items() if x is not None and seen.arguments.get(name) is not x]
        worst.expect(not lost, "another argument", f"{', '.join(lost)} of {form.text} under a mode")
    for form in chain(of_calls(t), of_samples(t, t.case.small_samples)):
        sequences = {name: list(value) for name, value in form.given.items() if isinstance(value, tuple)}
        if sequences:
            found = evaluate(form.with_given(sequences).ours, form.args)
            same = same_results(found, evaluate(form.ours, form.args))
            worst.expect(same, "other bits", f"{form.text}, {', '.join(sequences)} a list")
    yield worst.outcome()


def _of_subclass(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found = form.ours(*(x.as_subclass(_Subclass) for x in args))
    return tuple(x.as_subclass(Tensor) for x in found)
