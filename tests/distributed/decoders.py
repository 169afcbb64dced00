"""A decoder of fastops.nn and the same of torch.nn, with one state dict, and the plan that splits either of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from processes import device_type
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel

import fastops

WIDTH, HEADS, CLASSES, LAYERS = 16, 4, 22, 2


class TorchMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]


class TorchLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(x).flatten(0, 1), target.flatten())


class Attention(nn.Module):
    """Of as many heads as the projections of this process have."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in self.inward())
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))  # type: ignore[no-any-return]

    def inward(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj


class Block(nn.Module):
    def __init__(self, ours: bool) -> None:
        super().__init__()
        of: Any = fastops.nn if ours else nn
        self.attention_norm, self.attention = of.RMSNorm(WIDTH, 1e-5), Attention(of.Linear)
        self.mlp_norm = of.LayerNorm(WIDTH)
        self.mlp = fastops.nn.GatedMLP(WIDTH, 2 * WIDTH) if ours else TorchMLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    def __init__(self, ours: bool, layers: int = LAYERS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block(ours) for _ in range(layers))
        self.norm = (fastops.nn if ours else nn).RMSNorm(WIDTH, 1e-5)
        self.loss = fastops.nn.LinearCrossEntropyLoss(WIDTH, CLASSES) if ours else TorchLoss()

    def forward(self, tokens: Tensor, target: Tensor) -> Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.loss(self.norm(x), target)  # type: ignore[no-any-return]


def plan(ours: bool = True) -> dict[str, Any]:
    """Tokens in shards but for attention, MLP and loss, of which heads, features and classes are."""
    whole = {"input_layouts": Shard(1), "desired_input_layouts": Replicate()}
    heads = {"input_layouts": (Shard(1), Replicate()), "desired_input_layouts": (Replicate(), Replicate())}
    found: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
        "loss": PrepareModuleInput(**heads),
        "loss.linear": ColwiseParallel(output_layouts=None if ours else Replicate(), use_local_output=False),
    }
    for part, inward, outward in (("attention", "qkv", "o"), ("mlp", ("gate", "up"), "down")):
        found |= {
            f"blocks.*.{part}_norm": SequenceParallel(),
            f"blocks.*.{part}": PrepareModuleInput(**whole),
            f"blocks.*.{part}.{outward}_proj": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        }
        found |= {f"blocks.*.{part}.{name}_proj": ColwiseParallel() for name in inward}
    return found


def decoder(ours: bool = True, layers: int = LAYERS) -> Decoder:
    """With the same weights on all processes, of both kinds."""
    torch.manual_seed(0)
    found = Decoder(False, layers)
    for parameter in found.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)  # norms too have numbers of their own
    if not ours:
        return found.to(device_type())
    made = Decoder(True, layers)
    made.load_state_dict(found.state_dict())
    return made.to(device_type())


def batch(seed: int, rows: int = 2, length: int = 8) -> tuple[Tensor, Tensor]:
    text = torch.randint(0, CLASSES, (rows, length + 1), generator=torch.Generator().manual_seed(seed))
    text = text.to(device_type())
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
