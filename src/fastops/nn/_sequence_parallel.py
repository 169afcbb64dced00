"""The mark by which Megatron and Transformer Engine know parameters that each rank applies to tokens of its own."""

from __future__ import annotations

import torch


def mark(module: torch.nn.Module) -> None:
    """On its parameters, if it is ``sequence_parallel``."""
    if module.sequence_parallel:
        for parameter in module.parameters(recurse=False):
            parameter.sequence_parallel = True  # type: ignore[attr-defined]
