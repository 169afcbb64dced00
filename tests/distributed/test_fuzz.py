"""Operators on DTensors at random: which, placements, the mesh, whose gradients. Values of one process."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest
from cases import CASES, Case
from processes import agree, mesh_of, on, placed, run, spawn
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

FEW, MANY = 40, 2000


def placement(chance: random.Random, x: Tensor) -> Placement:
    ways: list[Placement] = [Replicate(), *map(Shard, range(x.dim()))]
    return chance.choice([*ways, Partial()] if x.is_floating_point() else ways)


def draw(chance: random.Random, mesh: DeviceMesh, case: Case) -> tuple[list[list[Placement]], list[bool]]:
    tensors = (*case.spread, *case.whole)
    placements = [[placement(chance, x) for _ in range(mesh.ndim)] for x in tensors]
    if chance.random() < 0.5:  # as they mostly are: what is spread alike, the others whole
        placements = [placements[0]] * len(case.spread) + [[Replicate()] * mesh.ndim] * len(case.whole)
    learns = [k < len(case.spread) + case.sums for k in range(len(tensors))]
    needs = [learn and chance.random() < 0.7 for learn in learns]
    if "k unused" in case.name:
        needs[1] = False
    return placements, needs


def refused(case: Case, placements: list[list[Placement]], mesh: DeviceMesh) -> bool:
    """Whether torch's own product does not take the shards, which is the same on all processes."""
    if not case.name.startswith(("linear", "lltm")):
        return False
    spread = [placed(x, mesh, p) for x, p in zip((*case.spread, *case.whole), placements, strict=True)]
    try:
        run(case.function, spread, [False] * len(spread), mesh, counted=False)
    except RuntimeError as error:
        return "fastops" not in str(error)
    return False


def fuzz(count: int, rank: int) -> None:
    processes = distributed.get_world_size()
    shapes = [(processes,), (2, processes // 2)]
    meshes = [mesh_of(*shape) for shape in shapes]
    chance = random.Random(processes)
    for k in range(count):
        mesh, case = chance.choice(meshes), chance.choice(CASES)
        placements, needs = draw(chance, mesh, case)
        if refused(case, placements, mesh):
            continue
        what = f"{k}: {case.name} {placements} {needs}"
        agree(what, case.function, (*case.spread, *case.whole), placements, mesh, needs)


@pytest.mark.parametrize(("device", "processes"), [on("cpu", 2, 2), on("cpu", 4, 4), on("cuda", 2, 2)])
def test_processes(device: str, processes: int, tmp_path: Path, pytestconfig: Any) -> None:
    count = MANY if pytestconfig.getoption("all") else FEW
    fewer = count if processes == 2 else count // 4  # of 4, which take longer
    spawn(functools.partial(fuzz, fewer), processes, tmp_path, device)
