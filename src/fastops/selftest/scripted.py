"""Modules of ``fastops.nn`` under ``torch.jit.script``, which has torch's own ops in place of ours."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from .. import nn
from .accuracy import Evaluation, evaluate, near
from .checks import Outcome
from .forms import Form, Worst, of_calls, of_samples, results_of
from .modules import MODULES, As, begun
from .target import Target


def scripted(t: Target) -> Iterator[Outcome]:
    """Results and gradients of each module that a call of the table makes, once for all calls that make it.

    In float64 alone, since torch's own ops have fewer digits. torch's own LinearCrossEntropyLoss cannot be compiled.
    """
    as_ = MODULES.get(t.case.name)
    if t.quick or t.dtype != torch.float64 or as_ is None or as_.module is nn.LinearCrossEntropyLoss:
        return
    worst = Worst(t, "torch.jit.script")
    seen = set[str]()
    for form in (*of_calls(t), *of_samples(t, t.case.small_samples)):
        made = begun(as_, form.arguments)
        if made and str(made[0]) not in seen:
            seen.add(str(made[0]))
            module, theirs, _ = made
            _as_module(worst, form, as_, module, theirs)
    yield worst.outcome()


def _as_module(worst: Worst, form: Form, as_: As, module: torch.nn.Module, theirs: torch.nn.Module | None) -> None:
    """Errors are torch.nn's own, or say that the options cannot be scripted."""
    names = [name for name in as_.inputs if isinstance(form.arguments.get(name), Tensor)]
    inputs = tuple(form.arguments[name] for name in names)

    def by(of: torch.nn.Module, *args: Tensor) -> tuple[Tensor, ...]:
        return results_of(of(*as_.inputs_of(dict(zip(names, args, strict=True)))))

    def script(of: torch.nn.Module) -> Evaluation | Exception:
        try:
            return evaluate(partial(by, torch.jit.script(of.to(worst.t.path.device, worst.t.dtype))), inputs)
        except Exception as error:  # torch.jit.Error is none of Python's, and an annotation may cost any of these
            return error

    found = script(module)
    if isinstance(found, Exception):
        is_torchs = theirs is not None and isinstance(script(theirs), Exception)
        worst.expect(is_torchs or "cannot be scripted" in str(found), f"{found}", str(module))
        return
    expected = evaluate(partial(by, module), inputs)
    same = near(found.outputs + found.gradients, expected.outputs + expected.gradients, worst.t.dtype)
    worst.expect(same, "other numbers", str(module))
