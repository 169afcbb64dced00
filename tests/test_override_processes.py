"""fastops.enable() and DTensors: two processes of gloo, each placement, against plain tensors in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

import fastops
from fastops.selftest.bits import same_bits

PROCESSES = 2
BATCH, TOKENS, HIDDEN = 4, 6, 8
PLACEMENTS: dict[str, Placement] = {
    "replicated": Replicate(),
    "over the batch": Shard(0),
    "over the sequence": Shard(1),
    "over the hidden dimension": Shard(2),
}
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
# torch's functions, each beside ours: of x and of a weight and a bias, which may be left aside.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (HIDDEN,), w, b),
        lambda x, w, b: fastops.layer_norm(x, (HIDDEN,), w, b),
    ),
    "rms_norm": (lambda x, w, b: F.rms_norm(x, (HIDDEN,), w), lambda x, w, b: fastops.rms_norm(x, (HIDDEN,), w)),
    "softmax": (lambda x, w, b: F.softmax(x, -1), lambda x, w, b: fastops.softmax(x, -1)),
    "softmax of tokens": (lambda x, w, b: F.softmax(x, 1), lambda x, w, b: fastops.softmax(x, 1)),
}


def whole(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def run(function: Function, given: list[Tensor]) -> list[Tensor | None]:
    """The output, and the gradients of what was given."""
    given = [x.detach().requires_grad_() for x in given]
    y = whole(function(*given))
    direction = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    (y * direction).sum().backward()
    return [y.detach(), *(None if x.grad is None else whole(x.grad) for x in given)]


def run_or_raise(function: Function, given: list[Tensor]) -> list[Tensor | None] | RuntimeError:
    try:
        return run(function, given)
    except RuntimeError as error:  # a placement that torch has no rule for
        return error


def check(name: str, placement: str, mesh: DeviceMesh, given: list[Tensor]) -> None:
    x, *parameters = given
    spread = [distribute_tensor(x, mesh, [PLACEMENTS[placement]])]
    spread += [distribute_tensor(parameter, mesh, [Replicate()]) for parameter in parameters]
    of_torch, of_ours = FUNCTIONS[name]
    before = run_or_raise(of_torch, spread)
    with fastops.enabled():
        found = run_or_raise(of_torch, spread)
    if isinstance(found, RuntimeError):
        assert isinstance(before, RuntimeError), f"{name} {placement}: {found}"
        return
    assert found[0] is not None
    assert same_bits(found[0], of_ours(*given)), f"{name} {placement}: another kernel ran"
    expected = run(of_torch, [x.double() for x in given])
    for result, wanted in zip(found, expected, strict=True):
        assert (result is None) == (wanted is None), f"{name} {placement}"
        if result is not None and wanted is not None:
            torch.testing.assert_close(
                result, wanted.float(), rtol=1e-5, atol=1e-5, msg=lambda m: f"{name} {placement}: {m}"
            )


def process(rank: int, file: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=PROCESSES)
    try:
        mesh = init_device_mesh("cpu", (PROCESSES,))
        generator = torch.Generator().manual_seed(0)
        shapes = ((BATCH, TOKENS, HIDDEN), (HIDDEN,), (HIDDEN,))
        given = [torch.randn(shape, generator=generator) for shape in shapes]
        for name in FUNCTIONS:
            for placement in PLACEMENTS:
                check(name, placement, mesh, given)
    finally:
        distributed.destroy_process_group()


@pytest.mark.skipif(not distributed.is_gloo_available(), reason="this PyTorch has no gloo")
def test_processes(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (str(tmp_path / "rendezvous"),), nprocs=PROCESSES)
