"""Norms for :mod:`fastops.integrations.kernels`: they read the attributes of the module they replace."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ops import rms_norm


class RMSNorm(nn.Module):
    """As of Llama, with its output dtype: that of the product of input and weight."""

    can_torch_compile = True
    weight: Tensor
    variance_epsilon: float
    eps: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = hidden_states.to(torch.promote_types(hidden_states.dtype, self.weight.dtype))
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        return rms_norm(x, self.weight.shape, self.weight, eps)


class RMSNormZeroCentered(nn.Module):
    """1 is added to the weight, as in Qwen3.5; the output has the input's dtype."""

    can_torch_compile = True
    weight: Tensor
    variance_epsilon: float
    eps: float

    def forward(self, x: Tensor) -> Tensor:
        eps = self.variance_epsilon if hasattr(self, "variance_epsilon") else self.eps
        return rms_norm(x, self.weight.shape, self.weight, eps, weight_offset=1.0)
