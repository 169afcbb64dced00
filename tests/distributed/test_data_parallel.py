"""DDP; FSDP2, also beside tensor and sequence parallel on a mesh of two dimensions, its checkpoints, and half types."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from decoders import Decoder, batch, decoder, plan
from processes import check_close, device_type, mesh_of, on, spawn, whole
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 2


def sharded(model: Decoder, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None, *, ours: bool = True) -> Any:
    """Along both dimensions of the mesh, or by FSDP alone where it has one."""
    if mesh.ndim == 2:
        parallelize_module(model, mesh["model"], plan(ours))
    options: dict[str, Any] = {"mesh": mesh["data"], "mp_policy": policy or MixedPrecisionPolicy()}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def trained(model: nn.Module, groups: int, group: int | None) -> list[Tensor]:
    """Losses and gradients' norms of steps in which each group has a batch of its own; None: all groups' at once."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3), []
    for step in range(STEPS):
        numbers = range(groups) if group is None else [group]
        loss: Any = sum(model(*batch(groups * step + k)) for k in numbers) / len(numbers)
        loss.backward()
        found.append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return found


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(t) for name, t in model.state_dict().items()}


def same_state(what: str, found: nn.Module, expected: nn.Module, tolerance: float = 1e-5) -> None:
    ours, theirs = state_of(found), state_of(expected)
    assert ours.keys() == theirs.keys(), what
    check_close(what, list(ours.values()), list(theirs.values()), tolerance)


def steps(mesh: DeviceMesh) -> None:
    expected = decoder(ours=False).double()
    truth = trained(expected, mesh["data"].size(), None)
    model = sharded(decoder(), mesh)
    found = trained(model, mesh["data"].size(), mesh["data"].get_local_rank())
    check_close(f"gradients' norms, {mesh.shape}", found, truth)
    same_state(f"parameters, {mesh.shape}", model, expected)


def replicated(rank: int) -> None:
    """DDP, two batches to a step: the first's gradients are added up with the second's."""
    expected = decoder(ours=False).double()
    processes = distributed.get_world_size()
    for k in range(2 * processes):
        (expected(*batch(k)) / processes).backward()
    gradients = [p.grad for p in expected.parameters()]
    for options in ({"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True}):
        model = DistributedDataParallel(decoder(), **options)  # type: ignore[arg-type]
        with contextlib.nullcontext() if "static_graph" in options else model.no_sync():
            model(*batch(rank)).backward()
        model(*batch(processes + rank)).backward()
        check_close(f"DDP {options}", [p.grad for p in model.parameters()], gradients)


def accumulated(mesh: DeviceMesh) -> None:
    """Two batches to a step, without the first's reduction; norms are frozen."""
    expected, model = decoder(ours=False).double(), sharded(decoder(), mesh)
    for each in (expected, model):
        for name, parameter in each.named_parameters():
            parameter.requires_grad_("norm" not in name)
    for k in range(2):
        model.set_requires_gradient_sync(k == 1)
        model(*batch(k)).backward()
        expected(*batch(k)).backward()
    gradients = {name: p.grad for name, p in expected.named_parameters() if p.grad is not None}
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == gradients.keys()
    check_close("accumulated", list(found.values()), list(gradients.values()))


def half(mesh: DeviceMesh) -> None:
    """bfloat16 parameters, reduced in float32: at most twice the error of torch.nn."""
    policy, errors = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32), {}
    truth = decoder(ours=False).double()
    truth(*batch(0)).backward()
    for ours in (True, False):
        model = sharded(decoder(ours), mesh, policy, ours=ours)
        model(*batch(0)).backward()
        pairs = zip(model.parameters(), truth.parameters(), strict=True)
        errors[ours] = max(((whole(p.grad) - q.grad).norm() / q.grad.norm()).item() for p, q in pairs)  # type: ignore[union-attr]
    assert errors[True] <= 2 * errors[False], errors


def float32_norms(mesh: DeviceMesh) -> None:
    """A norm whose parameters stay float32 is a unit of its own."""
    model = decoder()
    bfloat16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    seen = []
    for block in model.blocks:
        for norm in (block.attention_norm, block.mlp_norm):
            norm.register_forward_hook(lambda norm, _, y: seen.append((norm.weight.dtype, y.dtype)))
            fully_shard(norm, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
        fully_shard(block, mesh=mesh, mp_policy=bfloat16)
    fully_shard(model, mesh=mesh, mp_policy=bfloat16)
    model(*batch(0)).backward()
    assert set(seen) == {(torch.float32, torch.bfloat16)}


def checkpoints(mesh: DeviceMesh, folder: Path) -> None:
    """From a whole torch.nn to shards of ours that begin without memory, a training, and back."""
    expected = decoder(ours=False)
    dcp.save(expected.state_dict(), checkpoint_id=folder / "theirs")
    with torch.device("meta"):
        model = Decoder(True)
    sharded(model, mesh).to_empty(device=device_type())
    state = get_model_state_dict(model)
    dcp.load(state, checkpoint_id=folder / "theirs")
    set_model_state_dict(model, state)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    same_state("loaded into shards", model, expected, 0.0)
    groups, group = mesh["data"].size(), mesh["data"].get_local_rank()
    trained(model, groups, group)
    dcp.save(get_model_state_dict(model), checkpoint_id=folder / "ours")
    found = Decoder(False)
    whole_state = found.state_dict()
    dcp.load(whole_state, checkpoint_id=folder / "ours")
    found.load_state_dict(whole_state)
    same_state("loaded whole", found, model, 0.0)
    wide = expected.double()
    trained(wide, groups, None)
    same_state("trained between", found, wide)


def each(folder: Path, rank: int) -> None:
    processes = distributed.get_world_size()
    row = mesh_of(processes, names=("data",))
    square = mesh_of(processes // 2, 2, names=("data", "model"))
    replicated(rank)
    for mesh in (row, square):
        steps(mesh)
        half(mesh)
    accumulated(square)
    float32_norms(row)
    checkpoints(square, folder)


@pytest.mark.parametrize(("device", "processes"), [on("cpu", 4, 4), on("cuda", 2, 2)])
def test_processes(device: str, processes: int, tmp_path: Path) -> None:
    spawn(functools.partial(each, tmp_path), processes, tmp_path, device)
