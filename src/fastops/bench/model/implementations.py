"""The ways to make a model of transformers faster, each as a function of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .. import peers
from ..work import RefusedError
from .architectures import Architecture

Model = Callable[..., Any]


@dataclass(frozen=True)
class Made:
    """What is called in the model's place, and which of its modules were replaced, where that is known."""

    call: Model
    swapped: dict[str, str] | None = None
    left: dict[str, str] | None = None


def _eager(model: torch.nn.Module, architecture: Architecture) -> Made:
    return Made(model)


def _compile(model: torch.nn.Module, architecture: Architecture) -> Made:
    return Made(torch.compile(model))


def _liger(model: torch.nn.Module, architecture: Architecture) -> Made:
    from liger_kernel.transformers import monkey_patch  # type: ignore[import-not-found]

    kind = model.config.model_type  # type: ignore[union-attr]
    if kind not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise RefusedError(f"it has nothing for {kind}")
    monkey_patch._apply_liger_kernel_to_instance(model=model)
    return Made(model)


def _fastops(model: torch.nn.Module, architecture: Architecture) -> Made:
    import fastops

    report = fastops.patch(model, loss=not architecture.image)
    return Made(model, dict(report.swapped), dict(report.left))


def _fastops_compile(model: torch.nn.Module, architecture: Architecture) -> Made:
    made = _fastops(model, architecture)
    return Made(torch.compile(model), made.swapped, made.left)


IMPLEMENTATIONS: dict[str, Callable[[torch.nn.Module, Architecture], Made]] = {
    "eager": _eager,
    "compile": _compile,
    "liger": _liger,
    peers.OURS: _fastops,
    f"{peers.OURS}+compile": _fastops_compile,
}


def is_ours(name: str) -> bool:
    return name.partition("+")[0] == peers.OURS


def lacking(name: str, device: torch.device) -> str:
    """Why it cannot run at all, as far as that is known without importing it; empty if it may."""
    if reason := peers.absent(name):
        return reason
    return "needs a GPU" if name in peers.LIBRARIES and device.type != "cuda" else ""
