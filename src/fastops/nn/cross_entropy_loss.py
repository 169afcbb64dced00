"""Cross-entropy loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..families.row import scaled
from ..ops.cross_entropy import cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    r"""Applies :func:`fastops.cross_entropy`, the negative log-likelihood of the target classes.

    :class:`torch.nn.CrossEntropyLoss` and a scale, a softcap, a z-loss and the loss's dtype.

    Args:
        weight (Tensor, optional): of each class, [V]; a buffer.
        size_average (bool, optional): deprecated, see ``reduction``.
        ignore_index (int): rows with this target have loss 0 and gradient 0.
        reduce (bool, optional): deprecated, see ``reduction``.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing (float): 0 to 1.
        scale (float): by which the logits are multiplied, :math:`1 / T` for a temperature :math:`T`.
        softcap (float, optional): greater than 0, what the logits are capped to by a tanh.
        z_loss (float): the factor of lse² in each row's loss.
        dtype (torch.dtype, optional): the loss's. None: the logits'.

    Shape:
        logits [V], [N, V] or [N, V, d1, ...]; targets without the V, or probabilities with it; the loss of no
        dimensions, for ``"none"`` of the targets' shape without classes.

    Example::

        >>> fastops.nn.CrossEntropyLoss()(torch.zeros(1, 2), torch.tensor([1]))
        tensor(0.6931)
    """

    # Of a torch.nn.CrossEntropyLoss that became one of these; of a class's attributes TorchScript sees its constants.
    __constants__ = [*torch.nn.CrossEntropyLoss.__constants__, "scale", "softcap", "z_loss", "dtype"]  # noqa: RUF012
    scale = 1.0
    softcap: float | None = None
    z_loss = 0.0
    dtype: torch.dtype | None = None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        z_loss: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        self.scale = float(scale) if isinstance(scale, int) else scale  # TorchScript tells them apart
        self.softcap = softcap
        self.z_loss = z_loss
        self.dtype = dtype

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            if self.softcap is not None or self.z_loss != 0.0 or self.dtype is not None:
                raise RuntimeError("CrossEntropyLoss with softcap, z_loss or dtype cannot be scripted")
            loss = F.cross_entropy(
                scaled(input, self.scale),
                target,
                weight=self.weight,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                label_smoothing=self.label_smoothing,
            )
            return loss if self.scale == 1.0 else loss.to(input.dtype)
        else:
            return cross_entropy(  # type: ignore[return-value]
                input,
                target,
                self.weight,
                ignore_index=self.ignore_index,
                reduction=self.reduction,
                label_smoothing=self.label_smoothing,
                scale=self.scale,
                softcap=self.softcap,
                z_loss=self.z_loss,
                dtype=self.dtype,
            )

    def extra_repr(self) -> str:
        defaults = {"scale": 1.0, "softcap": None, "z_loss": 0.0, "dtype": None}
        return ", ".join(f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v)
