"""Modules of ``fastops.nn`` under ``torch.jit.script``, which has torch's own ops in place of ours."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import nn
from .accuracy import evaluate, near
from .checks import Outcome
from .forms import Worst, of_calls, of_samples, results_of
from .modules import MODULES, begun
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
        arguments = form.given | dict(zip(form.names, form.args, strict=True))
        made = begun(as_, arguments)
        if made and str(made[0]) not in seen:
            seen.add(str(made[0]))
            inputs = tuple(arguments[name] for name in as_.inputs if arguments.get(name) is not None)
            module, theirs, _ = made
            _as_module(worst, module.to(t.path.device, t.dtype), theirs, inputs)
    yield worst.outcome()


def _as_module(
    worst: Worst, module: torch.nn.Module, theirs: torch.nn.Module | None, inputs: tuple[Tensor, ...]
) -> None:
    if error := _error(module, inputs):
        of_torch = theirs is not None and _error(theirs.to(worst.t.path.device, worst.t.dtype), inputs) is not None
        worst.expect(of_torch or "cannot be scripted" in str(error), f"{error}", str(module))
        return
    found, expected = (evaluate(partial(by, module), inputs) for by in (_by_script, _results))
    same = near(found.outputs + found.gradients, expected.outputs + expected.gradients, worst.t.dtype)
    worst.expect(same, "other numbers", str(module))


def _error(module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> Exception | None:
    try:
        _by_script(module, *inputs)
    except Exception as error:  # torch.jit.Error is none of Python's, and an annotation may cost any of these
        return error
    return None


def _by_script(module: torch.nn.Module, *args: Tensor) -> tuple[Tensor, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        return _results(torch.jit.script(module), *args)


def _results(module: Any, *args: Tensor) -> tuple[Tensor, ...]:
    return results_of(module(args[0], args[1:]) if len(args) > 2 else module(*args))  # LLTM's last two are one state
