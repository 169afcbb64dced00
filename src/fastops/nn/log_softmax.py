"""Logarithm of the softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import type_error
from ..families.row import scaled
from ..ops.log_softmax import log_softmax


class LogSoftmax(torch.nn.LogSoftmax):
    r"""Applies :func:`fastops.log_softmax`, :math:`y_i = s x_i - \log \sum_j e^{s x_j}`.

    :class:`torch.nn.LogSoftmax` and a scale.

    Args:
        dim (int): along which :math:`e^y` sums to 1. None is an error here; that torch then chooses is deprecated.
        scale (float): :math:`s`, by which the input is multiplied; of logits :math:`1 / T` for a temperature :math:`T`.

    Shape:
        any to the same.

    Example::

        >>> fastops.nn.LogSoftmax(dim=1)(torch.zeros(1, 2))
        tensor([[-0.6931, -0.6931]])
    """

    # Of a torch.nn.LogSoftmax that became one of these; of a class's attributes TorchScript sees its constants alone.
    __constants__ = [*torch.nn.LogSoftmax.__constants__, "scale"]  # noqa: RUF012 - as torch has it
    scale = 1.0

    def __init__(self, dim: int, *, scale: float = 1.0) -> None:
        if dim is None:
            raise type_error("LogSoftmax", "dim", "an integer", dim)
        super().__init__(dim)
        self.scale = float(scale) if isinstance(scale, int) else scale  # TorchScript tells them apart

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            y = F.log_softmax(scaled(input, self.scale), self.dim)
            return y if self.scale == 1.0 else y.to(input.dtype)
        else:
            return log_softmax(input, self.dim, scale=self.scale)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", scale={self.scale}" if self.scale != 1.0 else "")
