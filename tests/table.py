"""The table of cases as pytest parameters, and small differentiable functions made of its samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fastops.cases import CASES, Case, Make, Sample
from fastops.selftest.accuracy import is_learnable

every_case = pytest.mark.parametrize("case", CASES)
every_sample = pytest.mark.parametrize(
    ("case", "sample"), [pytest.param(c, s, id=f"{c.name}-{s.name}") for c in CASES for s in c.samples]
)
every_small_sample = pytest.mark.parametrize(
    ("case", "sample"), [pytest.param(c, s, id=f"{c.name}-{s.name}") for c in CASES for s in c.small_samples]
)


@dataclass(frozen=True)
class Function:
    """One sample's function of what is differentiated alone: ours, and the plain composition."""

    tensors: tuple[Tensor, ...]
    ours: Callable[..., Any]
    plain: Callable[..., Any]


def function_of(case: Case, sample: Sample, device: torch.device, dtype: torch.dtype = torch.float64) -> Function:
    args = sample.args(device, dtype)
    positions = [k for k, a in enumerate(args) if is_learnable(a)]

    def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            filled = list(args)
            for k, tensor in zip(positions, tensors, strict=True):
                filled[k] = tensor
            return function(*filled)

        return call

    return Function(tuple(args[k] for k in positions), of_tensors(case.function), of_tensors(case.plain))


def scalar_of(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """A curved function of all outputs, so that every derivative has something to say."""

    def total(*tensors: Tensor) -> Tensor:
        out = function(*tensors)
        return sum((o.sin().sum() for o in (out if isinstance(out, tuple) else (out,))), start=torch.zeros(()))

    return total


def batch_of(tensors: tuple[Tensor, ...], size: int = 6) -> list[Tensor]:
    return [Make(t.device, t.dtype, seed=50 + k)(size, *t.shape) for k, t in enumerate(tensors)]


def assert_close(ours: Any, expected: Any, atol: float = 1e-10) -> None:
    torch.testing.assert_close(ours, expected, atol=atol, rtol=atol)
