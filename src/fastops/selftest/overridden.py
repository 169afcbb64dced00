"""Calls that torch hands on: under a mode of functions, as ``torch.set_default_device`` is one, and of subclasses."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from .accuracy import evaluate
from .checks import Outcome, same_results
from .forms import Form, Worst, of_calls
from .target import Target


class _Subclass(Tensor):
    pass


def overridden(t: Target) -> Iterator[Outcome]:
    """All arguments arrive: the bits of the call by itself."""
    if not t.first:
        return
    worst = Worst(t, "under a mode, and of a subclass")
    for form in of_calls(t):
        alone = evaluate(form.ours, form.args)
        with BaseTorchFunctionMode():
            found = evaluate(form.ours, form.args)
        worst.expect(same_results(found, alone), "other bits", f"{form.text} under a mode")
        found = evaluate(lambda *args: _of_subclass(form, args), form.args)  # noqa: B023
        worst.expect(same_results(found, alone), "other bits", f"{form.text} of a subclass")
    yield worst.outcome()


def _of_subclass(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found = form.ours(*(x.as_subclass(_Subclass) for x in args))
    return tuple(x.as_subclass(Tensor) for x in found)
