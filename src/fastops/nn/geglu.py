"""The gated linear unit of GELU."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..families.gated import by_torch, checked_numbers
from ..ops.geglu import check_approximate, geglu
from ._described import described


class GEGLU(torch.nn.Module):
    r"""Applies :func:`fastops.geglu`, :math:`y = a(g)\,(u + o)`, :math:`a(g) = g\,\Phi(g)`.

    Args:
        dim (int): along which one tensor has both.
        approximate (str): ``"none"``, or ``"tanh"`` for :math:`a(g) = g\,\sigma(2 z)`,
            :math:`z = \sqrt{2 / \pi}\,(g + 0.044715\,g^3)`.
        interleaved (bool): it has gate and up by turns along ``dim``, and not in halves.
        limit (float, optional): at least 0; the most of a gate, and of :math:`u` on both sides. None: no bound.
        offset (float): :math:`o`, added to the bounded up.

    Shape:
        ``forward(gate, up)``: two tensors of one shape to the same. ``forward(both)``: one that has both, along ``dim``
        half as long.

    Example::

        >>> fastops.nn.GEGLU(approximate="tanh")(torch.randn(4, 2 * 8192)).shape
        torch.Size([4, 8192])
    """

    def __init__(
        self,
        dim: int = -1,
        *,
        approximate: str = "none",
        interleaved: bool = False,
        limit: float | None = None,
        offset: float = 0.0,
    ) -> None:
        check_approximate("GEGLU", approximate)
        super().__init__()
        self.dim = dim
        self.approximate = approximate
        self.interleaved = interleaved
        self.limit, _, self.offset = checked_numbers("GEGLU", limit, 1.0, offset)

    def forward(self, gate: Tensor, up: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 - TorchScript
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            name = "geglu_tanh" if self.approximate == "tanh" else "geglu"
            return by_torch(name, gate, up, self.dim, self.interleaved, self.limit, 1.0, self.offset)
        else:
            return geglu(
                gate,
                up,
                approximate=self.approximate,
                dim=self.dim,
                interleaved=self.interleaved,
                limit=self.limit,
                offset=self.offset,
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}{described(self, approximate='none', interleaved=False, limit=None, offset=0.0)}"
