"""Activation checkpoints, whole and selective by the names of our ops, of plain tensors and of DTensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from decoders import Decoder, batch, decoder, plan
from processes import DEVICES, mesh_of, spawn, whole
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor.parallel import parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import fastops

NORMS = [torch.ops.fastops.rms_norm_forward.default, torch.ops.fastops.layer_norm_forward.default]
Checkpoint = Callable[[torch.nn.Module], torch.nn.Module]


class Counted(TorchDispatchMode):
    """How often norms ran forward."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += op in NORMS
        return op(*args, **(kwargs or {}))


def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in NORMS else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS: dict[str, Checkpoint] = {
    "none": lambda block: block,
    "whole": checkpoint_wrapper,
    "a function": functools.partial(
        checkpoint_wrapper, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)
    ),
    "a list": functools.partial(
        checkpoint_wrapper, context_fn=functools.partial(create_selective_checkpoint_contexts, NORMS)
    ),
}


def trained(model: Decoder, checkpoint: Checkpoint) -> tuple[int, list[Tensor]]:
    """The norms that ran in the backward; loss and gradients."""
    names = [name for name, _ in model.named_parameters()]
    model.blocks = torch.nn.ModuleList(map(checkpoint, model.blocks))  # type: ignore[assignment]
    loss = model(*batch(0))
    with Counted() as counted:
        loss.backward()
    gradients = [whole(p.grad) for p in model.parameters()]
    assert len(gradients) == len(names)
    return counted.count, [whole(loss.detach()), *gradients]


def check(made: Callable[[], Decoder]) -> None:
    """The same bits; each block's two norms are computed again but where they are named."""
    results = {name: trained(made(), checkpoint) for name, checkpoint in CHECKPOINTS.items()}
    again = 2 * len(made().blocks)
    assert {name: count for name, (count, _) in results.items()} == {
        "none": 0,
        "whole": again,
        "a function": 0,
        "a list": 0,
    }
    expected = results["none"][1]
    for name, (_, found) in results.items():
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a, b), name


def test_plain_tensors() -> None:
    check(decoder)


def of_shards(rank: int) -> None:
    mesh = mesh_of(2)

    def made() -> Decoder:
        return parallelize_module(decoder(), mesh, plan())  # type: ignore[return-value]

    check(made)


@pytest.mark.parametrize("device", DEVICES)
def test_processes(device: str, tmp_path: Path) -> None:
    spawn(of_shards, 2, tmp_path, device)


@pytest.mark.parametrize("ours", [fastops.nn.RMSNorm, fastops.nn.LayerNorm])
def test_a_norm_keeps_few_numbers_a_row(ours: Callable[[int], torch.nn.Module]) -> None:
    """Beside its input and its weights."""
    norm, kept = ours(64), []
    x = torch.randn(32, 64, requires_grad=True)
    known = {x.data_ptr(), *(p.data_ptr() for p in norm.parameters())}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        norm(x)
    assert sum(t.numel() for t in kept if t.data_ptr() not in known) <= 3 * 32
