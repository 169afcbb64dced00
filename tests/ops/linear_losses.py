"""What the tests of linear_cross_entropy and linear_log_prob share: inputs, both ops, and their truth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops
from fastops.cases import DTYPES, Make
from fastops.families.slices import SAVES

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_save = pytest.mark.parametrize("save", SAVES)
ROWS, FEATURES, CLASSES, WIDTH = 37, 24, 301, 64
# Of a result's norm. The half types' logits are rounded on a GPU.
CLOSE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def made(dtype: torch.dtype, device: torch.device, rows: int = ROWS, bias: bool = True) -> tuple[Any, ...]:
    make = Make(device, dtype)
    target = make.integers(rows, below=CLASSES)
    target[::5] = -100
    return make(rows, FEATURES), make(CLASSES, FEATURES, scale=0.3), target, make(CLASSES) if bias else None


def outputs_of(op: str, x: Tensor, w: Tensor, target: Tensor, b: Tensor | None, **options: Any) -> tuple[Tensor, ...]:
    if op == "cross_entropy":
        return (fastops.linear_cross_entropy(x, w, target, linear_bias=b, **options),)
    return fastops.linear_log_prob(x, w, target, linear_bias=b, entropy=True, **options)  # type: ignore[return-value]


def truth_of(op: str, x: Tensor, w: Tensor, target: Tensor, b: Tensor | None, **options: Any) -> tuple[Tensor, ...]:
    logits = F.linear(x, w, b)
    if op == "cross_entropy":
        return (fastops.reference.cross_entropy(logits, target, **options),)  # type: ignore[return-value]
    return fastops.reference.log_prob(logits, target, entropy=True, **options)  # type: ignore[return-value]


def leaves(*tensors: Tensor | None) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors if t is not None]


def check(found: Any, expected: Any, dtype: torch.dtype) -> None:
    for a, b in zip(found, expected, strict=True):
        error, size = (a.cpu().double() - b.cpu()).norm(), b.cpu().norm()
        assert error <= CLOSE[dtype] * size, (error / size).item()


def pair(tensors: list[Tensor], target: Tensor) -> tuple[Any, ...]:
    return tensors[0], tensors[1], target, tensors[2] if len(tensors) > 2 else None
