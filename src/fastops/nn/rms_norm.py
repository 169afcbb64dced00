"""RMS normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_numbers
from .._norm import with_offset
from ..ops.rms_norm import rms_norm
from ._described import described
from ._sequence_parallel import mark


class RMSNorm(torch.nn.RMSNorm):
    r"""Applies :func:`fastops.rms_norm` over the trailing dimensions; :class:`torch.nn.RMSNorm` with a weight offset.

    Args:
        normalized_shape (int or list of int): sizes of the trailing dimensions; one integer stands for the last alone.
        eps (float or None): added to the mean square; None as in :func:`fastops.rms_norm`.
        elementwise_affine (bool): learn a factor, initially 1.
        device, dtype: of the parameter; a float32 parameter may go with half-precision inputs.
        weight_offset (float): added to ``weight``, which starts at ``1 - weight_offset``: with 1.0 at zero.
        sequence_parallel (bool): write ``sequence_parallel = True`` on the parameters, for Megatron and Transformer
            Engine: each rank has some of the tokens, and they sum the parameters' gradients over the ranks.

    Shape:
        ``[*, *normalized_shape]`` to the same.

    The parameter and the state_dict are torch's: ``weight``, ``normalized_shape``.

    Example::

        >>> norm = fastops.nn.RMSNorm(768)
        >>> norm(torch.randn(8, 512, 768)).shape
        torch.Size([8, 512, 768])
    """

    # Of a torch.nn.RMSNorm that became one of these. TorchScript reads no annotation of a class that is text, and of a
    # class's attributes its constants alone.
    __constants__ = [*torch.nn.RMSNorm.__constants__, "weight_offset"]  # noqa: RUF012 - as torch has it
    weight_offset = 0.0
    sequence_parallel = False

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        weight_offset: float = 0.0,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        check_numbers("RMSNorm", weight_offset=weight_offset)
        self.weight_offset = weight_offset  # before torch initialises the weight
        self.sequence_parallel = sequence_parallel
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)
        mark(self)  # here, because parameters that leave the meta device are new ones

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.rms_norm(x, self.normalized_shape, with_offset(self.weight, self.weight_offset), self.eps)
        else:
            return rms_norm(x, self.normalized_shape, self.weight, self.eps, weight_offset=self.weight_offset)

    def extra_repr(self) -> str:
        return super().extra_repr() + described(self, weight_offset=0.0, sequence_parallel=False)
