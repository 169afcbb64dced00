"""Two processes of gloo: a language model patched with loss=True, in DDP and fully sharded, against one unpatched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fastops
from fastops.patching.deferred import Deferred

PROCESSES, CLASSES = 2, 50


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.norm, self.head = nn.Embedding(CLASSES, 8), nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.norm(self.embed(input_ids)))
        return {"loss": F.cross_entropy(logits.view(-1, CLASSES), labels.view(-1)), "logits": logits}


def batch(rank: int) -> dict[str, Tensor]:
    ids = torch.randint(CLASSES, (2, 6), generator=torch.Generator().manual_seed(rank))
    return {"input_ids": ids, "labels": ids}


def patched() -> Model:
    model = Model()
    assert list(fastops.patch(model, only=["loss"], loss=True).swapped) == ["head"]
    return model


def sharded(model: Any, *, apart: bool = False, again: bool | None = None) -> Any:
    if apart:
        fully_shard(model.head)
    return fully_shard(model, reshard_after_forward=again)


def check(found: Any, rank: int, expects_deferred: bool) -> dict[str, Tensor]:
    expected = Model()
    sum(expected(**batch(k))["loss"] for k in range(PROCESSES)).div(PROCESSES).backward()
    outputs = found(**batch(rank))
    if isinstance(outputs["logits"], Deferred):
        assert outputs["logits"].is_deferred
    assert isinstance(outputs["logits"], Deferred) is expects_deferred
    outputs["loss"].backward()
    gradients = {name.removeprefix("module."): p.grad for name, p in found.named_parameters()}
    for name, parameter in expected.named_parameters():
        g = gradients[name]
        whole = g.full_tensor() if isinstance(g, DTensor) else g
        torch.testing.assert_close(whole, parameter.grad, rtol=0, atol=1e-6)
    return outputs


WAYS: dict[str, tuple[Callable[[], Any], bool]] = {
    "DDP": (lambda: DistributedDataParallel(patched()), True),
    "DDP that looks for unused parameters": (
        lambda: DistributedDataParallel(patched(), find_unused_parameters=True),
        True,
    ),
    "sharded": (lambda: sharded(patched()), True),
    "sharded again after the forward": (lambda: sharded(patched(), again=True), True),
    "the head by itself": (lambda: sharded(patched(), apart=True), False),
}


def process(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    try:
        for name, (way, expects_deferred) in WAYS.items():
            outputs = check(way(), rank, expects_deferred)
            if name == "sharded again after the forward":  # whose weight has gone
                with pytest.raises(RuntimeError, match="must be read before the head's weight or input changes"):
                    outputs["logits"].sum()
        with pytest.warns(UserWarning, match="nothing was swapped"):
            report = fastops.patch(fully_shard(Model()), only=["loss"], loss=True)
        assert report.left == {"head": "Linear: its weight is sharded: patch first, then shard"}
    finally:
        distributed.destroy_process_group()


def test_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path / "rendezvous"),), nprocs=PROCESSES)
