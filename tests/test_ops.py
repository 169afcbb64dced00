"""Every sample of the table on every device and dtype: values and gradients against float64."""

from __future__ import annotations

import pytest
import torch
from table import every_case, every_sample

from fastops.cases import DTYPES, Case, Make, Sample
from fastops.cases.inputs import HALVES
from fastops.selftest import checks
from fastops.selftest.accuracy import errors, evaluate, learnable, tensors_of, truth_of, ulps, wide_copies
from fastops.selftest.bits import same_bits
from fastops.selftest.target import Path, Target

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@every_sample
@every_dtype
@pytest.mark.parametrize("path", ["kernels", "reference"])
def test_values_and_gradients(case: Case, sample: Sample, dtype: torch.dtype, device: torch.device, path: str) -> None:
    function = case.function if path == "kernels" else case.reference
    args = sample.args(device, dtype)
    before = [x.clone() for x in tensors_of(args)]
    result = evaluate(function, args)
    found = list(errors(case, args, result, truth_of(case, args, result.outputs)))

    bound = case.bounds[dtype]
    for kind, error in found:
        assert error <= (bound.forward if kind == "forward" else bound.gradient), f"{kind}: {found}"
    wide = torch.float32 if case.wide_outputs and dtype in HALVES else dtype
    asked_for = next((a for a in args if isinstance(a, torch.dtype)), wide)
    for out in result.outputs:
        assert out.dtype == asked_for
        assert out.device == args[0].device
    for x, gradient in zip(learnable(args), result.gradients, strict=True):
        assert gradient.dtype == x.dtype
    if not any(out.numel() for out in result.outputs):
        assert not any(gradient.count_nonzero() for gradient in result.gradients)
    for x, y in zip(tensors_of(args), before, strict=True):
        assert same_bits(x, y), "an input was modified"


@every_sample
def test_agrees_with_torch(case: Case, sample: Sample, device: torch.device) -> None:
    if case.torch_op is None:
        pytest.skip("torch has no such op")
    if sample.unlike_torch:
        pytest.skip("torch's own has other numbers")
    args = sample.args(device, torch.float64)
    ours, theirs = evaluate(case.function, args), evaluate(case.torch_op, args)
    for a, b in zip(ours.outputs + ours.gradients, theirs.outputs + theirs.gradients, strict=True):
        # torch's float64 loses digits on rows with hardly any spread.
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, equal_nan=True)


@every_case
@every_dtype
@pytest.mark.parametrize("check", checks.KERNEL_CHECKS, ids=lambda check: check.__name__)
def test_check(case: Case, dtype: torch.dtype, device: torch.device, check: checks.Check) -> None:
    """Each of the selftest's checks of kernels, at the CPU level in use."""
    path = Path(device, "cuda" if device.type == "cuda" else "cpu")
    for outcome in check(Target(case, dtype, path, quick=True)):
        assert outcome.ok, outcome


@every_case
@every_dtype
@pytest.mark.parametrize("check", [checks.values, checks.kernels], ids=lambda check: check.__name__)
def test_check_at_every_level(case: Case, dtype: torch.dtype, level: str, check: checks.Check) -> None:
    for outcome in check(Target(case, dtype, Path(torch.device("cpu"), "cpu", level), quick=True)):
        assert outcome.ok, outcome


@every_case
def test_raw_op_equals_its_reference(case: Case, device: torch.device) -> None:
    for call in case.raw(Make(device, torch.float64), 5, 9):
        expected = call.reference.with_args(wide_copies(call.args))()
        for out, truth in zip(call(), expected, strict=True):
            assert ulps(out, truth) <= case.bounds[torch.float64].kernel, call.op
