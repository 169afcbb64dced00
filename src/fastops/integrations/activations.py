"""Activations for :mod:`fastops.integrations.kernels`: each one of torch's own kernels.

transformers writes two of them out, ``NewGELU`` in eight kernels, and its mapping has none for training. ``kernelize``
with ``use_fallback=False`` raises where a model has one that no mapping names.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SiLU(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        return F.silu(input)


class GELU(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input)


class GELUTanh(nn.Module):
    can_torch_compile = True

    def forward(self, input: Tensor) -> Tensor:
        return F.gelu(input, approximate="tanh")
