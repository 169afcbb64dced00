"""The feed-forward block of language models."""

from __future__ import annotations

import torch
from torch import Tensor

from ..families.gated import by_torch, checked_numbers
from ..ops.geglu import geglu
from ..ops.glu import glu
from ..ops.reglu import reglu
from ..ops.swiglu import swiglu
from ._described import described

_ACTIVATIONS = ("swiglu", "geglu", "geglu_tanh", "reglu", "glu")


class GatedMLP(torch.nn.Module):
    r"""A gated linear unit between three linear layers.

    .. math:: y = \left(a(x W_g^\top + b_g) \odot (x W_u^\top + b_u + o)\right) W_d^\top + b_d

    with :math:`a(g)` of ``"swiglu"`` :math:`g\,\sigma(\alpha g)`, of ``"geglu"`` :math:`g\,\Phi(g)`, of
    ``"geglu_tanh"`` its approximation by a tanh, of ``"reglu"`` :math:`\max(g, 0)` and of ``"glu"`` :math:`\sigma(g)`,
    of a gate that is at most ``limit``; what it gates is within ``limit`` on both sides before :math:`o` is added.
    The layers are :class:`torch.nn.Linear`, and what is between them is one operator, such as :func:`fastops.swiglu`.

    Args:
        hidden (int): size of each row of input and output.
        intermediate (int): size of each row between.
        activation (str): ``"swiglu"``, ``"geglu"``, ``"geglu_tanh"``, ``"reglu"`` or ``"glu"``.
        bias (bool): learn :math:`b_g`, :math:`b_u` and :math:`b_d`.
        device, dtype: of the parameters.
        limit (float, optional): at least 0. None: no bound.
        alpha (float): :math:`\alpha`, of ``"swiglu"`` alone.
        offset (float): :math:`o`.

    Shape:
        ``[*, hidden]`` to the same.

    The state_dict is that of the MLP of Llama, Mistral, Qwen and Gemma in Hugging Face's transformers:
    ``gate_proj.weight`` and ``up_proj.weight``, [intermediate, hidden], ``down_proj.weight``, [hidden, intermediate],
    with ``bias`` also ``gate_proj.bias``, ``up_proj.bias`` and ``down_proj.bias``.

    Example::

        >>> mlp = fastops.nn.GatedMLP(2048, 8192)
        >>> mlp(torch.randn(2, 16, 2048)).shape
        torch.Size([2, 16, 2048])
    """

    def __init__(
        self,
        hidden: int,
        intermediate: int,
        activation: str = "swiglu",
        bias: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        limit: float | None = None,
        alpha: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        if activation not in _ACTIVATIONS:
            raise ValueError(f"[GatedMLP] activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}")
        super().__init__()
        self.activation = activation
        self.limit, self.alpha, self.offset = checked_numbers("GatedMLP", limit, alpha, offset)
        if activation != "swiglu" and self.alpha != 1.0:
            raise ValueError(f"[GatedMLP] alpha must be 1.0 for activation {activation!r}, got {alpha}")
        self.gate_proj = torch.nn.Linear(hidden, intermediate, bias, device, dtype)
        self.up_proj = torch.nn.Linear(hidden, intermediate, bias, device, dtype)
        self.down_proj = torch.nn.Linear(intermediate, hidden, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        gate, up = self.gate_proj(input), self.up_proj(input)
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self.down_proj(by_torch(self.activation, gate, up, -1, False, self.limit, self.alpha, self.offset))
        else:
            return self.down_proj(self._gated(gate, up))

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        if self.activation == "swiglu":
            return swiglu(gate, up, limit=self.limit, alpha=self.alpha, offset=self.offset)
        if self.activation == "reglu":
            return reglu(gate, up, limit=self.limit, offset=self.offset)
        if self.activation == "glu":
            return glu(up, gate=gate, limit=self.limit, offset=self.offset)
        approximate = "tanh" if self.activation == "geglu_tanh" else "none"
        return geglu(gate, up, approximate=approximate, limit=self.limit, offset=self.offset)

    def extra_repr(self) -> str:
        return f"activation={self.activation!r}{described(self, limit=None, alpha=1.0, offset=0.0)}"
