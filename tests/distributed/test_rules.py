"""Each operator on DTensors in each placement: values of one process in float64, collectives, placements."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch.nn.functional as F
from abilities import flattens_shards
from cases import CASES, Case, H, w, x
from processes import agree, mesh_of, on, placed, spawn
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode

import fastops


def check(case: Case, placements: Sequence[Placement], mesh: DeviceMesh) -> None:
    tensors = [*case.spread, *case.whole]
    given = [placements] * len(case.spread) + [[Replicate()] * mesh.ndim] * len(case.whole)
    learning = len(case.spread) + case.sums
    needs = [k < learning and t.is_floating_point() for k, t in enumerate(tensors)]
    if "k unused" in case.name:
        needs[1] = False
    shards = [p for p in placements if isinstance(p, Shard)]
    fits = not any(p.is_partial() for p in placements) and all(
        p.dim in case.free and case.spread[-1].shape[p.dim] >= mesh.size() for p in shards
    )
    most = 0 if fits else mesh.ndim * len(case.spread) + of_product(case, placements, mesh)
    what = f"{case.name} {placements}"
    found = agree(what, case.function, tensors, given, mesh, needs, forward=most, backward=None if most else 0)
    if not fits:
        return
    for gradient in found.gradients[len(case.spread) :]:
        for d, placement in enumerate(placements):
            if isinstance(placement, Shard) and gradient.dim() <= 2 and placement.dim < 2:
                assert gradient.placements[d].is_partial(), f"{what}: a gradient is {gradient.placements}"


def of_product(case: Case, placements: Sequence[Placement], mesh: DeviceMesh) -> int:
    """Collectives of torch's own product, which in 2.10 adds partial sums up."""
    if not case.name.startswith("linear"):
        return 0
    matrix = placed(case.whole[0], mesh, [Replicate()] * mesh.ndim)
    with CommDebugMode() as counter:
        F.linear(placed(case.spread[0], mesh, placements), matrix)
    return counter.get_total_counts()


def refused(case: Case, placements: Sequence[Placement], mesh: DeviceMesh) -> bool:
    """By torch's own product, which makes one dimension of several: with shards of the second 2.10 and 2.11 do not."""
    return case.name.startswith("linear") and Shard(1) in placements and not flattens_shards(mesh)


def every_placement(rank: int) -> None:
    """On a mesh of one dimension."""
    mesh = mesh_of(distributed.get_world_size())
    for case in CASES:
        for placement in (Replicate(), *map(Shard, range(case.spread[0].dim())), Partial()):
            if not refused(case, [placement], mesh):
                check(case, [placement], mesh)
    what_is_asked(mesh)
    no_rule_no_answer(mesh)


def what_is_asked(mesh: DeviceMesh) -> None:
    """Each set of gradients, behind others: an answer is kept for what was asked, and no more."""

    def layer(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return fastops.layer_norm(x, (H,), w, b)

    given = [x(), w, x(2, H)]
    ways = [needs for needs in itertools.product([False, True], repeat=3) if True in needs]
    random.Random(0).shuffle(ways)
    for needs in ways + ways[::-1]:
        agree(f"layer_norm {needs}", layer, given, [[Shard(0)], [Replicate()], [Replicate()]], mesh, needs, backward=0)


def no_rule_no_answer(mesh: DeviceMesh) -> None:
    with pytest.raises(RuntimeError, match=r"got mixed torch\.Tensor and DTensor"):
        fastops.rms_norm(placed(x(), mesh, [Shard(0)]), (H,), w)
    assert fastops.capabilities().dtensor == "registered"


def two_dimensions(rank: int) -> None:
    """On a mesh of two; and fewer rows than processes."""
    mesh = mesh_of(2, 2)
    for k, case in enumerate(CASES[::2]):
        sharded = [Shard(d) for d in case.free]
        pairs = [*itertools.product(sharded, repeat=2), (Replicate(), sharded[0]), (Partial(), sharded[-1])]
        if case.name.startswith("linear") and (Shard(1), Shard(1)) in pairs:
            pairs.remove((Shard(1), Shard(1)))  # which torch's product does not take
        pairs = [pair for pair in pairs if not refused(case, pair, mesh)]
        check(case, pairs[k % len(pairs)], mesh)
    row = mesh_of(4)
    few = x(0, 3, 2, H)
    agree(
        "fewer rows",
        lambda x, w: fastops.rms_norm(x, (H,), w),
        [few, w],
        [[Shard(1)], [Replicate()]],
        row,
        (True, True),
    )


WAYS = [on("cpu", 2, 2, every_placement), on("cuda", 2, 2, every_placement), on("cpu", 4, 4, two_dimensions)]


@pytest.mark.parametrize(("device", "processes", "what"), WAYS)
def test_processes(device: str, processes: int, what: Callable[[int], None], tmp_path: Path) -> None:
    spawn(what, processes, tmp_path, device)
