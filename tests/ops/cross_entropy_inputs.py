"""What the tests of cross_entropy share: its options, and inputs that go with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fastops.cases import DTYPES, Make

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_reduction = pytest.mark.parametrize("reduction", ["none", "mean", "sum"])

# One option at a time, and all of them.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "weight": {"weight": True},
    "smoothing": {"label_smoothing": 0.1},
    "smoothing alone": {"label_smoothing": 1.0},
    "scale": {"scale": 0.5},
    "negative scale": {"scale": -2.0},
    "softcap": {"softcap": 3.0},
    "z_loss": {"z_loss": 1e-2},
    "all": {"weight": True, "label_smoothing": 0.2, "scale": 1.5, "softcap": 5.0, "z_loss": 1e-3},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def made(
    dtype: torch.dtype, device: torch.device, *shape: int, ignored: int = 3, options: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Logits, targets of which every third is ignored, and the options with a weight for each class."""
    make = Make(device, dtype)
    at = 1 if len(shape) > 1 else 0
    x, target = make(*shape, scale=2.0), make.integers(*shape[:at], *shape[at + 1 :], below=shape[at])
    if ignored:
        target.view(-1)[::ignored] = -100
    options = dict(options)
    if options.get("weight"):
        options["weight"] = make(shape[at]).abs_().add_(0.1)
    return x, target, options
