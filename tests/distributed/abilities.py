"""What this torch's own code can do with DTensors and split backwards, found by trying it. Tests leave out the rest."""

from __future__ import annotations

from typing import Any

import torch
from processes import placed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.distributed.tensor import Partial, Replicate, Shard


def flattens_shards(mesh: DeviceMesh) -> bool:
    """Two dimensions to one, of which the second is in shards; torch's product does so too. 2.10 and 2.11 refuse it."""
    x = placed(torch.zeros(2, mesh.size()), mesh, [Shard(1), *[Replicate()] * (mesh.ndim - 1)])
    try:
        x.flatten()
    except RuntimeError:
        return False
    return True


def scales_partial_sums(mesh: DeviceMesh) -> bool:
    """In place and several at a time, as gradients are clipped. 2.10 and 2.11 leave them as they are."""
    x = placed(torch.ones(2), mesh, [Partial()] * mesh.ndim)
    torch._foreach_mul_([x], 0.5)
    return x.full_tensor()[0].item() == 0.5


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx: Any, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return first * w + second, first * x + second


def splits_backward() -> bool:
    """Of a Function first the input's gradient, then the weight's, as zero-bubble schedules do. 2.10 to 2.12 cannot."""
    x, w = torch.full((3,), 2.0, requires_grad=True), nn.Parameter(torch.ones(3))

    def loss() -> Tensor:
        first, second = _Pair.apply(x, w)
        return (3 * first + second).sum()

    try:
        _, groups = stage_backward_input([loss()], None, [x], iter([w]))
        stage_backward_weight(iter([w]), groups)
    except RuntimeError:
        return False
    return w.grad is not None and w.grad.eq(7).all().item()  # type: ignore[return-value]
