"""Functions whose form in PyTorch loses digits even in float64."""

from __future__ import annotations

import torch
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """1 + erf would cancel in the left tail."""
    return x * 0.5 * torch.erfc(x * -(0.5**0.5))
