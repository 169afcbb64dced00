"""Partial sums, added up before something is made of them that is not linear."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .lazy import is_sharded
from .moves import redistributed


def added_up(x: Tensor) -> Tensor:
    """``x`` without partial sums: each process gets some rows of theirs, where there are enough, else all.

    What is computed of ``x`` keeps it for the backward, where a partial sum would be added up again.
    """
    if not is_sharded(x):
        return x
    sharded: Any = x
    if not any(p.is_partial() for p in sharded.placements):
        return x
    from torch.distributed.tensor import Replicate, Shard

    placements = list(sharded.placements)
    taken = {getattr(p, "dim", None) for p in placements}
    for d, placement in enumerate(placements):
        if placement.is_partial():
            rows = (k for k, size in enumerate(x.shape[:-1]) if k not in taken and size >= sharded.device_mesh.size(d))
            row = next(rows, None)
            placements[d] = Replicate() if row is None else Shard(row)
            taken.add(row)
    return redistributed(x, placements)
