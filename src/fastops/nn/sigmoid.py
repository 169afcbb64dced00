"""Logistic function."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.sigmoid import sigmoid


class Sigmoid(torch.nn.Sigmoid):
    r"""Applies :func:`fastops.sigmoid`, :math:`y = 1 / (1 + e^{-x})`, elementwise; :class:`torch.nn.Sigmoid` otherwise.

    Shape:
        any to the same.

    Example::

        >>> fastops.nn.Sigmoid()(torch.tensor([0.0]))
        tensor([0.5000])
    """

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.sigmoid(input)
        else:
            return sigmoid(input)
