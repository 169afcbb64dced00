"""The recurrent cell of PyTorch's C++ extension tutorial."""

from __future__ import annotations

import math
from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.lltm import lltm


def _by_torch(
    input: Tensor,
    weights: Tensor,
    bias: Tensor,
    state: Optional[tuple[Tensor, Tensor]],  # noqa: UP045 - TorchScript
) -> tuple[Tensor, Tensor]:
    """A step by torch's own ops, for TorchScript."""
    if state is None:
        zeros = input.new_zeros([input.shape[0], weights.shape[0] // 3])
        state = (zeros, zeros)
    h, c = state
    gate_in, gate_out, candidate = F.linear(torch.cat([h, input], 1), weights, bias).chunk(3, 1)
    new_cell = c + F.elu(candidate) * torch.sigmoid(gate_in)
    return torch.tanh(new_cell) * torch.sigmoid(gate_out), new_cell


class LLTM(torch.nn.Module):
    r"""One step of the long long-term memory cell, :func:`fastops.lltm`.

    Args:
        input_features: size of each input row.
        state_size: size of each state row.
        device, dtype: of the parameters.

    Shape:
        ``forward(input, (h, c))``: input ``[batch, input_features]``, states and results ``[batch, state_size]``.
        Without a state both are zero, as in :class:`torch.nn.LSTMCell`.

    Attributes:
        weights: ``[3 * state_size, state_size + input_features]``, uniform in :math:`\pm 1/\sqrt{\text{state\_size}}`.
        bias: ``[3 * state_size]``, likewise.

    Example::

        >>> cell = fastops.nn.LLTM(32, 128)
        >>> h, c = cell(torch.randn(16, 32), (torch.randn(16, 128), torch.randn(16, 128)))
        >>> h.shape
        torch.Size([16, 128])
    """

    def __init__(
        self,
        input_features: int,
        state_size: int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.input_features = input_features
        self.state_size = state_size
        columns = state_size + input_features
        self.weights = torch.nn.Parameter(torch.empty(3 * state_size, columns, device=device, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.empty(3 * state_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.state_size) if self.state_size > 0 else 0.0
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor, state: Optional[tuple[Tensor, Tensor]] = None) -> tuple[Tensor, Tensor]:  # noqa: UP045 - TorchScript
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return _by_torch(input, self.weights, self.bias, state)
        else:
            if state is None:
                zeros = input.new_zeros(input.shape[:1] + (self.state_size,))  # noqa: RUF005 - torch.fx takes no *
                state = zeros, zeros
            return lltm(input, self.weights, self.bias, state[0], state[1])

    def extra_repr(self) -> str:
        return f"{self.input_features}, {self.state_size}"
