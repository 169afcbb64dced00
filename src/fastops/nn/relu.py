"""Rectified linear unit."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.relu import relu


class ReLU(torch.nn.ReLU):
    r"""Applies :func:`fastops.relu`, :math:`y = \max(x, 0)`, elementwise; :class:`torch.nn.ReLU` without ``inplace``.

    Args:
        inplace: must be False; fastops overwrites nothing of the caller's.

    Shape:
        any to the same.

    Example::

        >>> fastops.nn.ReLU()(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """

    def __init__(self, inplace: bool = False) -> None:
        if inplace:
            raise ValueError("[ReLU] inplace must be False: fastops overwrites nothing; torch.nn.ReLU does")
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return torch.relu(input)
        else:
            return relu(input)
