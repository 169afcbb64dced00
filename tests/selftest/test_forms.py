"""Whose bound an error has."""

from __future__ import annotations

import torch

from fastops.cases import by_name
from fastops.selftest.accuracy import Evaluation
from fastops.selftest.forms import Worst, few
from fastops.selftest.target import Target, devices_of, paths_of


def test_a_gradient_of_float32_beside_a_half_type_has_the_bound_of_float32() -> None:
    (path,) = (path for path in paths_of(devices_of("cpu")[0], None, quick=True) if path.best)
    case = by_name()["qk_norm_rope"]
    t = Target(case, torch.bfloat16, path, quick=True)
    form = next(iter(few(t)))
    exact = form.truth([torch.ones(out.shape, dtype=out.dtype) for out in form.by_reference()])
    k = next(k for k, at in enumerate(form.learnable) if form.names[at] == "q_weight")
    single, half = case.bounds[torch.float32].gradient, case.bounds[torch.bfloat16].gradient
    assert form.args[form.learnable[k]].dtype == torch.float32
    assert single > half

    for error, right in ((0.9 * single, True), (1.1 * single, False)):
        root = exact.gradients[k].square().mean().sqrt()
        found = list(exact.gradients)
        found[k] = (found[k] + error * torch.finfo(torch.float32).eps * torch.maximum(found[k].abs(), root)).float()
        worst = Worst(t, "bound")
        worst.compare(form, Evaluation(exact.outputs, tuple(found)), exact, "a call")
        assert worst.outcome().ok == right, worst.outcome()


def test_only_the_composition_in_whole_precision_has_the_room_of_torchs_digits() -> None:
    case = by_name()["log_prob"]
    for path in paths_of(devices_of("cpu")[0], None, quick=True):
        for dtype in case.dtypes:
            found, own = Target(case, dtype, path, quick=True).bound(), case.bounds[dtype]
            room = 1.5 if path.kind == "reference" and dtype.itemsize > 2 else 1.0
            assert (found.forward, found.gradient, found.kernel) == (
                room * own.forward,
                room * own.gradient,
                own.kernel,
            )
