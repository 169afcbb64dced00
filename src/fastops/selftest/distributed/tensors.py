"""Tensors that all processes have, as DTensors, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor

Placements = Sequence[Placement]


def shares(count: int) -> Iterator[int]:
    """Of a partial sum each process's share of the total: 1, -1, ... of an odd number, 2, -1, 1, -1, ... of an even.

    Neighbours' shares add up to 2, 1, 0 or -1, so that sums of them are exact in every dtype.
    """
    for k in range(count):
        yield 2 if k == 0 and count % 2 == 0 else (-1) ** k


def placed(x: Tensor, mesh: DeviceMesh, placements: Placements) -> DTensor:
    """``x``, of which a partial sum gives each process a summand of its own."""
    partial = [d for d, p in enumerate(placements) if p.is_partial()]
    if not partial:
        return distribute_tensor(x, mesh, placements)
    others = [Replicate() if d in partial else p for d, p in enumerate(placements)]
    local = distribute_tensor(x, mesh, others).to_local()
    for d in partial:
        local = local * list(shares(mesh.size(d)))[mesh.get_local_rank(d)]
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())


def is_partial(x: Any) -> bool:
    return isinstance(x, DTensor) and any(p.is_partial() for p in x.placements)


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def summed(x: Any) -> Any:
    """The whole, of which partial sums are added up in float64."""
    return _sum(x, x.to_local().double()).to(x.dtype) if is_partial(x) else whole(x)


def magnification(x: Any, total: Tensor) -> float:
    """How much larger than a total, or all its elements' root mean square, the summands of a partial sum are.

    Each is rounded by itself, which may be so much worse than the rounding of the total.
    """
    if not total.numel():
        return 1.0
    sizes = _sum(x, x.to_local().double().abs()).cpu()
    least = max(total.square().mean().sqrt().item(), torch.finfo(x.dtype).tiny)
    return max(1.0, (sizes / total.abs().clamp_min(least)).max().item())


def _sum(x: DTensor, summand: Tensor) -> Tensor:
    wide = DTensor.from_local(summand, x.device_mesh, x.placements, run_check=False, shape=x.shape, stride=x.stride())
    return wide.full_tensor()
