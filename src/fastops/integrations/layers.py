"""The rotary embedding and gated MLPs for :mod:`fastops.integrations.kernels`, without a state of their own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..ops import geglu, rope, swiglu


class RotaryPosEmb(nn.Module):
    """Heads are dimension ``unsqueeze_dim``: 1 of ``[batch, heads, seq, dim]``, 2 of ``[batch, seq, heads, dim]``."""

    can_torch_compile = True

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        return rope(q, k, cos, sin, rotary_dim=q.shape[-1], seq_dim=-2 if unsqueeze_dim == 1 else -3)


class SwiGLUMLP(nn.Module):
    """As of Llama."""

    can_torch_compile = True
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))


class GeGLUMLP(nn.Module):
    """As of Gemma: gelu by a tanh."""

    can_torch_compile = True
    gate_proj: nn.Module
    up_proj: nn.Module
    down_proj: nn.Module

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(geglu(self.gate_proj(x), self.up_proj(x), approximate="tanh"))
