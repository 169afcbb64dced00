"""The error of a result in ulps, of usual numbers and of others."""

from __future__ import annotations

import math

import pytest
import torch

from fastops.cases.inputs import DTYPES
from fastops.selftest.accuracy import ulps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 2.0**-700, 2.0**600])
def test_the_formula(dtype: torch.dtype, relative: bool, scale: float) -> None:
    """Where the truth is finite in the dtype."""
    limits = torch.finfo(dtype)
    numbers = [x * scale for x in (1.0, 0.5, 0.25, -1.5) if scale < limits.max]
    found = torch.tensor([x * (1 + 3 * k * limits.eps) for k, x in enumerate(numbers)], dtype=torch.float64).to(dtype)
    root = 0.0 if relative else math.hypot(*numbers) / 2
    expected = [
        abs(a - b) / (limits.eps * max(abs(b), root, limits.tiny))
        for a, b in zip(found.double().tolist(), numbers, strict=True)
    ]
    truth = torch.tensor(numbers, dtype=torch.float64)
    assert ulps(found, truth, relative=relative) == pytest.approx(max(expected, default=0), rel=1e-9)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("found", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("expected", [1.0, math.nan, math.inf, -math.inf, 1e30])
def test_no_numbers(found: float, expected: float, relative: bool) -> None:
    """Right where the truth, rounded to the dtype, is the same, and infinitely wrong elsewhere."""
    out = torch.tensor([1.0, 2.0, found], dtype=torch.float16)
    truth = torch.tensor([1.0, 2.0, expected], dtype=torch.float64)
    rounded = float(truth.half()[2])
    same = found == rounded or (math.isnan(found) and math.isnan(rounded))
    assert ulps(out, truth, relative=relative) == (0 if same else math.inf)


@pytest.mark.parametrize("relative", [False, True])
def test_in_neighbourhoods_of_all_numbers_it_is_the_whole(relative: bool) -> None:
    truth = torch.randn(7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = truth.float() * (1 + 2**-22)
    assert ulps(out, truth, relative=relative, among=truth.numel()) == pytest.approx(
        ulps(out, truth, relative=relative), rel=1e-12
    )
