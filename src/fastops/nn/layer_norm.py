"""Layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.layer_norm import layer_norm


class LayerNorm(torch.nn.LayerNorm):
    r"""Applies :func:`fastops.layer_norm` over the trailing dimensions; :class:`torch.nn.LayerNorm` otherwise.

    Args:
        normalized_shape (int or list of int): sizes of the trailing dimensions; one integer stands for the last alone.
        eps (float): added to the variance.
        elementwise_affine (bool): learn a factor, initially 1.
        bias (bool): beside the factor, learn an additive bias, initially 0.
        device, dtype: of the parameters; float32 parameters may go with half-precision inputs.

    Shape:
        ``[*, *normalized_shape]`` to the same.

    Parameters and the state_dict are torch's: ``weight`` and ``bias``, each ``normalized_shape``.

    Example::

        >>> norm = fastops.nn.LayerNorm(768)
        >>> norm(torch.randn(8, 512, 768)).shape
        torch.Size([8, 512, 768])
    """

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        else:
            return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
