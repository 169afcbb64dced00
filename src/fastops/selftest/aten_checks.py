"""torch's own functions while :func:`fastops.enable` has our kernels behind them; ``--aten`` has them alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..cases import by_name
from ..cases.inputs import DTYPES
from ..cases.refused import REFUSED
from ..overrides import disable, enable, enabled
from . import gradients, promises, transforms
from .accuracy import Evaluation, evaluate, incoming_gradients, near
from .aten_case import aten_case, function_of
from .aten_operators import as_atens, of_two_dtypes
from .bits import all_same
from .checks import MAIN_DTYPES, Check, Outcome, finite_differences, samples_of, values
from .forms import Form, Worst, of_calls, table
from .refusals import error_of, is_error, other_shapes
from .target import Target


def _within(check: Check) -> Check:
    def run(t: Target) -> Iterator[Outcome]:
        with enabled(function_of(t)):
            yield from list(check(t))

    run.__name__ = check.__name__
    return run


def runs_our_kernels(t: Target) -> Iterator[Outcome]:
    """The outputs have the bits of our own function, and before and afterwards torch's.

    What is enabled twice is enabled until it is disabled twice, and both times says the same of what ran before.
    """
    ours = by_name()[function_of(t)].function
    different, changed, was = [], [], set[str]()
    for sample in samples_of(t):
        args = sample.args(t.path.device, t.dtype)
        before = evaluate(t.function, args).outputs
        with enabled(function_of(t)) as once:
            with enabled(function_of(t)) as twice:
                was |= {*once.functions.values(), *twice.functions.values()}
            during = evaluate(t.function, args).outputs
        after = evaluate(t.function, args).outputs
        # Of dtype= torch's functions convert their input first.
        if during[0].dtype == t.dtype and not all_same(during, evaluate(ours, args).outputs):
            different.append(sample.name)
        if not all_same(before, after):
            changed.append(sample.name)
    yield Outcome("our kernels while enabled", not different, detail=", ".join(different))
    yield Outcome("torch's afterwards", not changed, detail=", ".join(changed))
    yield Outcome("what was there before", len(was) < 2, detail=", ".join(sorted(was)))
    with enabled():
        missing = {*_C.overridden()} - {*_in_force()}
    yield Outcome("all of them where none is named", not missing, detail=", ".join(sorted(missing)))
    with contextlib.suppress(KeyError), enabled():
        raise KeyError
    yield Outcome("none afterwards", not _in_force(), detail=", ".join(_in_force()))


def _in_force() -> list[str]:
    return [name for name in _C.overridden() if _C.is_enabled(name)]


def across(t: Target) -> Iterator[Outcome]:
    """The gradients of a graph that was made while torch's function was ours and is run when it no longer is, and the
    reverse.
    """
    worst = Worst(t, "enabled between forward and backward")
    for form in of_calls(t):
        if error_of(partial(evaluate, form.ours, form.args)):  # aten's does not take them
            continue
        for forward in (True, False):
            found = _evaluated(form, function_of(t), forward)
            truth = form.truth(incoming_gradients(found.outputs))
            where = f"{form.text}, {'forward' if forward else 'backward'} enabled"
            worst.expect(near(found.gradients, truth.gradients, t.dtype), "other gradients", where)
    yield worst.outcome()


def _evaluated(form: Form, name: str, forward: bool) -> Evaluation:
    """With torch's function ours in the forward alone, or in the backward alone."""
    args = [x.detach().requires_grad_() for x in form.args]
    with enabled(name) if forward else contextlib.nullcontext():
        outputs = form.ours(*args)
    grads = incoming_gradients(outputs)
    with contextlib.nullcontext() if forward else enabled(name):
        return Evaluation(tuple(y.detach() for y in outputs), torch.autograd.grad(outputs, args, grads))


def other_calls(t: Target) -> Iterator[Outcome]:
    """Arguments that our kernels do not take, and torch's do, have torch's results."""
    worst = Worst(t, "calls that are not ours")
    for other, dtype, where in _of_other_dtypes(t):
        call = partial(evaluate if dtype.is_floating_point else _without_gradients, other.ours, other.args)
        if error_of(call):
            continue
        expected = call()
        with enabled(function_of(t)):
            found = call()
        results, others = found.outputs + found.gradients, expected.outputs + expected.gradients
        worst.expect([x.dtype for x in results] == [x.dtype for x in others], "another dtype", where)
        worst.expect(near(results, others, t.dtype), "other numbers", where)
    yield worst.outcome()


def _of_other_dtypes(t: Target) -> Iterator[tuple[Form, torch.dtype, str]]:
    """The table's calls with one tensor of another dtype."""
    for form in table(t):
        for k, dtype in product(range(len(form.args)), (*DTYPES, torch.int32, torch.complex64)):
            yield form.with_arg(k, form.args[k].to(dtype)), dtype, f"{form.names[k]} of {dtype}, {form.text}"


def _without_gradients(function: Any, args: tuple[Tensor, ...]) -> Evaluation:
    return Evaluation(function(*args), ())


def errors(t: Target) -> Iterator[Outcome]:
    """What torch's function refuses it refuses while it is ours, and nothing else."""
    if not t.first:
        return
    worst = Worst(t, "errors")
    first, *_, last = (form for form in table(t) if not error_of(partial(form.ours, *form.args)))  # aten's takes them
    alone = replace(first, names=first.names[:1], args=first.args[:1], text=f"{first.names[0]} alone")
    for other, where in chain.from_iterable(map(_of_wrong_arguments, (alone, first, last))):
        call = partial(other.ours, *other.args)
        expected = error_of(call)
        with enabled(function_of(t)):
            found = error_of(call)
        # Behind the stable ABI all errors are RuntimeErrors.
        same = found is None if expected is None else is_error(found, type(expected), RuntimeError)
        worst.expect(same, "another error", f"{where}: {found!r} and {expected!r}")
    yield worst.outcome()


def _of_wrong_arguments(form: Form) -> Iterator[tuple[Form, str]]:
    for k, name in enumerate(form.names):
        for x in other_shapes(form.args[k]):
            yield form.with_arg(k, x), f"{name} of shape {list(x.shape)}, {form.text}"
    for name in form.given:
        _, refused = REFUSED.get(name, (RuntimeError, ()))
        for value in refused:
            yield form.with_given({name: value}), f"{name}={value}, {form.text}"


def in_force(t: Target) -> Iterator[Outcome]:
    """An unknown name enables nothing, and who disables what is not enabled does not disable what is afterwards."""
    name = function_of(t)
    error = error_of(partial(enable, name, f"{name}s"))
    refused = isinstance(error, ValueError) and not _in_force()
    yield Outcome("an unknown name is refused", refused, detail=f"{error!r}, in force: {_in_force()}")
    disable()
    with enabled(name):
        yield Outcome("enabled after one disable too many", _in_force() == [name], detail=", ".join(_in_force()))


def derivatives(t: Target) -> Iterator[Outcome]:
    """Forward mode, by torch's own formula above our kernels."""
    if t.dtype == torch.float32:
        yield from transforms.forward_mode(t)


ATEN_CHECKS: tuple[Check, ...] = (
    _within(values),
    _within(finite_differences),
    _within(promises.arguments),
    _within(gradients.gradients_asked_for),
    _within(gradients.incoming),
    _within(gradients.sliced),
    _within(derivatives),
    runs_our_kernels,
    across,
    as_atens,
    of_two_dtypes,
    other_calls,
    errors,
    in_force,
)


def _by_enable(check: Check) -> Check:
    """The check of the function that is ours by ``fastops.enable``, in the run of our own."""

    def run(t: Target) -> Iterator[Outcome]:
        case = aten_case(t.case, t.path.device)
        if case is None:
            return
        quick = t.quick or t.dtype not in MAIN_DTYPES
        for outcome in check(Target(case, t.dtype, t.path, quick, True, t.main, t.first)):
            yield replace(outcome, check=f"enabled: {outcome.check}")

    run.__name__ = f"enabled: {check.__name__}"
    return run


# Each is a check of its own, since an exception ends only its own check.
TORCHS_FUNCTIONS = tuple(map(_by_enable, ATEN_CHECKS))
