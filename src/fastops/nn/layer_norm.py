"""Layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_numbers
from .._norm import with_offset
from ..ops.layer_norm import layer_norm
from ._described import described
from ._sequence_parallel import mark


class LayerNorm(torch.nn.LayerNorm):
    r"""Applies :func:`fastops.layer_norm` over the trailing dimensions; :class:`torch.nn.LayerNorm` and an offset.

    Args:
        normalized_shape (int or list of int): sizes of the trailing dimensions; one integer stands for the last alone.
        eps (float): added to the variance.
        elementwise_affine (bool): learn a factor, initially 1.
        bias (bool): beside the factor, learn an additive bias, initially 0.
        device, dtype: of the parameters; float32 parameters may go with half-precision inputs.
        weight_offset (float): added to ``weight``, which starts at ``1 - weight_offset``: with 1.0 at zero.
        sequence_parallel (bool): write ``sequence_parallel = True`` on the parameters, for Megatron and Transformer
            Engine: each rank has some of the tokens, and they sum the parameters' gradients over the ranks.

    Shape:
        ``[*, *normalized_shape]`` to the same.

    Parameters and the state_dict are torch's: ``weight`` and ``bias``, each ``normalized_shape``.

    Example::

        >>> norm = fastops.nn.LayerNorm(768)
        >>> norm(torch.randn(8, 512, 768)).shape
        torch.Size([8, 512, 768])
    """

    # Of a torch.nn.LayerNorm that became one of these; of a class's attributes TorchScript sees its constants alone.
    __constants__ = [*torch.nn.LayerNorm.__constants__, "weight_offset"]  # noqa: RUF012 - as torch has it
    weight_offset = 0.0
    sequence_parallel = False

    def __init__(
        self,
        normalized_shape: int | list[int] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        weight_offset: float = 0.0,
        *,
        sequence_parallel: bool = False,
    ) -> None:
        check_numbers("LayerNorm", weight_offset=weight_offset)
        self.weight_offset = weight_offset  # before torch initialises the weight
        self.sequence_parallel = sequence_parallel
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1.0 - self.weight_offset)
        mark(self)  # here, because parameters that leave the meta device are new ones

    def forward(self, input: Tensor) -> Tensor:
        shape, offset = self.normalized_shape, self.weight_offset
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return F.layer_norm(input, shape, with_offset(self.weight, offset), self.bias, self.eps)
        else:
            return layer_norm(input, shape, self.weight, self.bias, self.eps, weight_offset=offset)

    def extra_repr(self) -> str:
        return super().extra_repr() + described(self, weight_offset=0.0, sequence_parallel=False)
