"""The gated linear unit of SiLU."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..families.gated import by_torch, checked_numbers
from ..ops.swiglu import swiglu
from ._described import described


class SwiGLU(torch.nn.Module):
    r"""Applies :func:`fastops.swiglu`, :math:`y = a(g)\,(u + o)`, :math:`a(g) = g\,\sigma(\alpha g)`.

    Args:
        dim (int): along which one tensor has both.
        interleaved (bool): it has gate and up by turns along ``dim``, and not in halves.
        limit (float, optional): at least 0; the most of a gate, and of :math:`u` on both sides. None: no bound.
        alpha (float): :math:`\alpha`.
        offset (float): :math:`o`, added to the bounded up.

    Shape:
        ``forward(gate, up)``: two tensors of one shape to the same. ``forward(both)``: one that has both, along ``dim``
        half as long.

    Example::

        >>> fastops.nn.SwiGLU()(torch.randn(4, 2 * 11008)).shape
        torch.Size([4, 11008])
        >>> of_gpt_oss = fastops.nn.SwiGLU(interleaved=True, limit=7.0, alpha=1.702, offset=1.0)
    """

    def __init__(
        self,
        dim: int = -1,
        *,
        interleaved: bool = False,
        limit: float | None = None,
        alpha: float = 1.0,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.interleaved = interleaved
        self.limit, self.alpha, self.offset = checked_numbers("SwiGLU", limit, alpha, offset)

    def forward(self, gate: Tensor, up: Optional[Tensor] = None) -> Tensor:  # noqa: UP045 - TorchScript
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return by_torch("swiglu", gate, up, self.dim, self.interleaved, self.limit, self.alpha, self.offset)
        else:
            return swiglu(
                gate,
                up,
                dim=self.dim,
                interleaved=self.interleaved,
                limit=self.limit,
                alpha=self.alpha,
                offset=self.offset,
            )

    def extra_repr(self) -> str:
        return f"dim={self.dim}{described(self, interleaved=False, limit=None, alpha=1.0, offset=0.0)}"
