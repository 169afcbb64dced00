"""Two processes of gloo: DDP, fully_shard and tensor parallel blocks, patched, against one process unpatched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from planted import HandMLP, HandRMSNorm, N
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fastops

PROCESSES = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = HandRMSNorm(), HandMLP(nn.GELU("tanh"))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(x))


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Block(), Block(), nn.LayerNorm(N))


def batch(rank: int) -> Tensor:
    return torch.randn(4, N, generator=torch.Generator().manual_seed(rank))


def gradients(of: nn.Module) -> dict[str, Tensor]:
    found = {name.removeprefix("module."): p.grad for name, p in of.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}


def shard(of: nn.Sequential) -> nn.Module:
    for block in of[:2]:
        fully_shard(block)
    return fully_shard(of)


def ddp(of: nn.Sequential) -> nn.Module:
    return DistributedDataParallel(of)


def split(of: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for block in of[:2]:
        plan = {"a": ColwiseParallel(), "b": ColwiseParallel(), "c": RowwiseParallel()}
        parallelize_module(block.mlp, mesh, plan)
    return of


def check_shards() -> None:
    """Norms of DTensors, and MLPs whose projections return them, compute as they did."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    projections = {name: ColwiseParallel(use_local_output=False) for name in ("a", "b")}
    plans: dict[str, Any] = {"norm": SequenceParallel(), "mlp": {**projections, "c": RowwiseParallel()}}
    for name, plan in plans.items():
        expected = getattr(model()[0], name)
        found = getattr(model()[0], name)
        parallelize_module(found, mesh, plan)
        assert fastops.patch(found).swapped
        x = batch(0).unsqueeze(0)
        y, whole = found(distribute_tensor(x, mesh, [Shard(1)]) if name == "norm" else x), expected(x)
        torch.testing.assert_close(y.full_tensor() if isinstance(y, DTensor) else y, whole)
        y.square().sum().backward()
        whole.square().sum().backward()
        for parameter, gradient in gradients(expected).items():
            torch.testing.assert_close(gradients(found)[parameter], gradient)


def check(way: Callable[[nn.Sequential], nn.Module], first: bool, same_batch: bool, rank: int) -> None:
    batches = [0, 0] if same_batch else range(PROCESSES)
    expected = model()
    sum(expected(batch(k)).square().mean() for k in batches).div(PROCESSES).backward()
    found = model()
    if first:
        report = fastops.patch(found)
        found = way(found)  # type: ignore[assignment]
    else:
        found = way(found)  # type: ignore[assignment]
        report = fastops.patch(found)
    assert len(report.swapped) == 5, str(report)
    found(batch(batches[rank])).square().mean().backward()
    of_one = gradients(expected)
    of_two = gradients(found)
    assert of_two.keys() == of_one.keys()
    for name, gradient in of_one.items():
        torch.testing.assert_close(of_two[name], gradient, rtol=0, atol=1e-6 * max(1.0, float(gradient.abs().max())))


def process(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    try:
        for first in (True, False):
            check(ddp, first, False, rank)
            check(shard, first, False, rank)
            check(split, first, True, rank)
        check_shards()
        found = model()
        report = fastops.patch(found)
        for module in found.modules():
            if isinstance(module, HandRMSNorm):
                fully_shard(module)
        with pytest.raises(RuntimeError, match=r"\[undo\] 0.norm must be of the class that patch gave it, got .*FSDP"):
            report.undo()
    finally:
        distributed.destroy_process_group()


def test_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path / "rendezvous"),), nprocs=PROCESSES)
