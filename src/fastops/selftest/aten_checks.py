"""``--aten``: torch's own functions while :func:`fastops.enable` has our kernels behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from .. import _C
from ..cases import Case, Sample, by_name
from ..overrides import enabled
from .accuracy import evaluate
from .bits import all_same
from .checks import Check, Outcome, finite_differences, samples_of, values
from .target import Target

PREFIX = "aten "


def aten_case(case: Case, device: torch.device) -> Case | None:
    """The row of torch's own function on a device; None where nothing of it is overridden."""
    if case.name not in _C.overridden() or case.torch_op is None:
        return None

    def alike(sample: Sample) -> bool:
        on_cuda = device.type == "cuda" and sample.unlike_torch_on_cuda
        return not (sample.unlike_torch or sample.composed_by_torch or on_cuda)

    samples = tuple(filter(alike, case.samples))
    return replace(case, name=PREFIX + case.name, function=case.torch_op, samples=samples)


def _name(t: Target) -> str:
    return t.case.name.removeprefix(PREFIX)


def _within(check: Check) -> Check:
    def run(t: Target) -> Iterator[Outcome]:
        with enabled(_name(t)):
            yield from list(check(t))

    run.__name__ = check.__name__
    return run


def runs_our_kernels(t: Target) -> Iterator[Outcome]:
    """The outputs have the bits of our own function, and before and afterwards torch's.

    What is enabled twice is enabled until it is disabled twice, and both times says the same of what ran before.
    """
    ours = by_name()[_name(t)].function
    different, changed, was = [], [], set[str]()
    for sample in samples_of(t):
        args = sample.args(t.path.device, t.dtype)
        before = evaluate(t.function, args).outputs
        with enabled(_name(t)) as once:
            with enabled(_name(t)) as twice:
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


ATEN_CHECKS: tuple[Check, ...] = (_within(values), _within(finite_differences), runs_our_kernels)
