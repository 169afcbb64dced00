"""Linear with an activation."""

from __future__ import annotations

from typing import Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.linear import check_activation, linear


def _activated(u: Tensor, activation: Optional[str]) -> Tensor:  # noqa: UP045 - TorchScript of torch 2.10
    """The activation by torch's own ops, for TorchScript."""
    if activation is None:
        return u
    if activation == "relu":
        return F.relu(u)
    if activation == "sigmoid":
        return torch.sigmoid(u)
    if activation == "silu":
        return F.silu(u)
    return F.gelu(u, approximate="tanh" if activation == "gelu_tanh" else "none")


class Linear(torch.nn.Linear):
    r"""Applies :func:`fastops.linear`, :math:`y = a(x W^\top + b)`; :class:`torch.nn.Linear` with an activation.

    Args:
        in_features: size of each input row.
        out_features: size of each output row.
        bias: learn an additive :math:`b`.
        device, dtype: of the parameters.
        activation: None, ``"relu"``, ``"sigmoid"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.

    Shape:
        ``[*, in_features]`` to ``[*, out_features]``.

    Parameters, their initialisation and the state_dict are torch's: ``weight [out_features, in_features]``,
    ``bias [out_features]``.

    Example::

        >>> layer = fastops.nn.Linear(20, 30, activation="gelu")
        >>> layer(torch.randn(128, 20)).shape
        torch.Size([128, 30])
    """

    # Of a torch.nn.Linear that became one of these. TorchScript reads no annotation of a class that is text, and of a
    # class's attributes its constants alone.
    __constants__ = [*torch.nn.Linear.__constants__, "activation"]  # noqa: RUF012 - as torch has it
    activation = cast("str | None", None)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
    ) -> None:
        check_activation("Linear", activation)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return _activated(F.linear(input, self.weight, self.bias), self.activation)
        else:
            return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.activation is None else f", activation={self.activation!r}")
