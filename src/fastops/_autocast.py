"""Autocast for the functions that torch casts too: done before the op, so that torch differentiates the casts."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from ._arguments import type_error

_compiling = torch.compiler.is_dynamo_compiling
_any_autocast = torch._C._is_any_autocast_enabled


def lower_precision(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """As torch does for GEMMs: under autocast, floating-point tensors other than float64 in autocast's dtype."""
    first = _input(tensors[0])
    if not (_compiling() or _any_autocast()):  # the cheapest question
        return tensors
    device = first.device.type
    if not enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if _castable(t) else t for t in tensors)


def enabled(device: str) -> bool:
    if device == "meta":  # Dynamo does not come back from the question
        return False
    try:
        return torch.is_autocast_enabled(device)
    except RuntimeError:  # what has no autocast says so; to ask first is not traceable before torch 2.13
        return False


_enabled = torch.is_autocast_enabled


def computes_wide(x: Tensor) -> bool:
    """Whether torch's norms and square compute in float32 here: under CUDA autocast; on CPU they do not."""
    try:
        return x.is_cuda and _enabled("cuda")
    except AttributeError:  # no Tensor, which the op says
        return False


def casts_losses(x: Tensor) -> bool:
    """Whether torch's losses compute in float32 here: under autocast of the CPU too."""
    return (_compiling() or _any_autocast()) and enabled(x.device.type)


def single_precision(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    return tuple(t.float() if _castable(t) else t for t in tensors)


def _input(x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise type_error("fastops", "input", "a Tensor", x)
    return x


def _castable(t: Tensor | None) -> TypeGuard[Tensor]:
    return isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64
