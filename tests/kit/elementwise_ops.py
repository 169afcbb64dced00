"""Elementwise ops of several kinds, and what they should give."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastops import kit

swish = kit.elementwise("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
relu = kit.elementwise("relu(x)", "x > 0 ? x : 0", backward="x > 0 ? grad : 0")
wave = kit.elementwise("wave(x, y, *, s=2.0)", "x * y + s * sin(x), exp(y) * x")


@kit.elementwise
def huber(x: Any, y: Any, *, delta: float = 1.0) -> Any:
    d = abs(x - y)
    return 0.5 * d * d if d < delta else delta * (d - 0.5 * delta)


def true_swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


def true_wave(x: Tensor, y: Tensor, s: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * y + s * torch.sin(x), torch.exp(y) * x


def compare(got: Tensor, truth: Tensor) -> None:
    """``got`` to within a rounding or two of its dtype; ``truth`` is float64."""
    assert got.shape == truth.shape
    eps = torch.finfo(got.dtype).eps
    torch.testing.assert_close(
        got.double(), truth, rtol=4 * eps, atol=4 * eps * max(1.0, float(truth.abs().nan_to_num().max()))
    )


def double(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
