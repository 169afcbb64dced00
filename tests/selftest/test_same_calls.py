"""Calls whose results are to be alike: rows by themselves, runs one behind the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from stand_in import case_of
from torch import Tensor

from fastops.selftest.checks import Check, Outcome, repeatable, rows_alone
from fastops.selftest.target import Path, Target


def outcome_of(check: Check, result: Callable[[Tensor], Tensor], device: torch.device) -> Outcome:
    (outcome,) = check(Target(case_of(result), torch.float32, Path(device, device.type), quick=True))
    return outcome


@pytest.mark.parametrize("differs", [False, True])
def test_rows_alone(differs: bool, device: torch.device) -> None:
    outcome = outcome_of(rows_alone, lambda x: x + float(differs and len(x) == 3), device)
    assert outcome.ok == (not differs)
    assert ("rows 1 to 4" in outcome.detail) == differs


@pytest.mark.parametrize("differs", [False, True])
def test_repeatable(differs: bool, device: torch.device) -> None:
    calls = []

    def result(x: Tensor) -> Tensor:
        calls.append(x)
        return x + float(differs and len(calls) == 3)

    outcome = outcome_of(repeatable, result, device)
    assert (outcome.ok, outcome.detail) == ((False, "square") if differs else (True, ""))
