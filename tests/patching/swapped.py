"""A swapped module against itself before."""

from __future__ import annotations

import torch
from torch import Tensor

from fastops.patching import Report


def run(module: torch.nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Output, and the gradients of input and parameters."""
    x = x.detach().clone().requires_grad_()
    y = module(x)
    direction = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view_as(y)
    named = dict(module.named_parameters())
    gradients = torch.autograd.grad(y, [x, *named.values()], direction, allow_unused=True)
    return y.detach(), dict(zip(["input", *named], gradients, strict=True))


def same(found: tuple[Tensor, dict], expected: tuple[Tensor, dict], tolerance: float) -> None:
    """Within this of the largest number of each tensor; five times that for gradients."""
    pairs = {"output": (found[0], expected[0])} | {name: (found[1][name], expected[1][name]) for name in expected[1]}
    assert found[1].keys() == expected[1].keys()
    for name, (a, b) in pairs.items():
        assert (a is None) == (b is None), name
        if a is not None and b is not None:
            assert a.dtype == b.dtype, name
            bound = float(b.abs().max()) * tolerance * (1 if name == "output" else 5)
            torch.testing.assert_close(a, b, rtol=0, atol=bound, msg=lambda m, name=name: f"{name}: {m}")


def against_itself(module: torch.nn.Module, report: Report, x: Tensor, tolerance: float) -> None:
    """A module that is swapped, beside what it is without: its classes are put back for that time."""
    found = run(module, x)
    classes = [(done.module, done.now, done.before) for done in report._applied]
    assert classes
    for each, _, before in classes:
        each.__class__ = before
    expected = run(module, x)
    for each, now, _ in classes:
        each.__class__ = now
    same(found, expected, tolerance)
