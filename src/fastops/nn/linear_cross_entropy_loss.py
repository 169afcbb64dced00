"""Cross-entropy loss of a linear layer's outputs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..ops.linear_cross_entropy import linear_cross_entropy

# torch's own is there from 2.13 on.
_Base: Any = getattr(torch.nn, "LinearCrossEntropyLoss", torch.nn.Module)


class LinearCrossEntropyLoss(_Base):  # type: ignore[misc]
    r"""Applies :func:`fastops.linear_cross_entropy`: a linear layer to logits, and the loss of the target classes.

    ``torch.nn.LinearCrossEntropyLoss`` of torch 2.13, with its arguments but for ``options``, and its state dict, of
    which ``linear.weight`` is [num_classes · d1 · ..., in_features]; and a scale, a softcap, a z-loss, the loss's dtype
    and what is saved.

    Args:
        in_features (int): of each row of the input.
        num_classes (int): C.
        out_features (tuple[int, ...]): d1, ..., of a loss of more dimensions.
        bias (bool): whether the linear layer has one.
        device (torch.device, optional): of the linear layer.
        dtype (torch.dtype, optional): of the linear layer.
        weight (Tensor, optional): of each class, [C]; a buffer.
        reduction (str): ``"mean"``, ``"sum"`` or ``"none"``.
        ignore_index (int, optional): rows with this target have loss 0 and gradient 0. None: -100.
        label_smoothing (float): 0 to 1.
        scale (float): by which the logits are multiplied.
        softcap (float, optional): greater than 0, what the logits are capped to by a tanh.
        z_loss (float): the factor of lse² in each row's loss.
        loss_dtype (torch.dtype, optional): the loss's. None: the input's.
        save (str): ``"auto"``, ``"logits"`` or ``"none"``.

    Shape:
        input [*, in_features]; targets [*, d1, ...], or probabilities with the C before d1; the loss of no dimensions,
        for ``"none"`` of the targets' shape without classes.

    Example::

        >>> loss = fastops.nn.LinearCrossEntropyLoss(4, 10)
        >>> loss(torch.zeros(2, 4), torch.tensor([1, 7]))
        tensor(2.3026, grad_fn=<linear_cross_entropyBackward>)
    """

    weight: Tensor | None
    # Of a torch.nn.LinearCrossEntropyLoss that became one of these.
    scale = 1.0
    softcap: float | None = None
    z_loss = 0.0
    loss_dtype: torch.dtype | None = None
    save = "auto"

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        scale: float = 1.0,
        softcap: float | None = None,
        z_loss: float = 0.0,
        loss_dtype: torch.dtype | None = None,
        save: str = "auto",
    ) -> None:
        torch.nn.Module.__init__(self)  # all that the base would set is set here
        if weight is not None and list(weight.shape) != [num_classes]:
            raise RuntimeError(
                f"[LinearCrossEntropyLoss] weight must have shape [{num_classes}], got {list(weight.shape)}"
            )
        self.register_buffer("weight", weight)
        self.num_classes = num_classes
        self.out_features = tuple(out_features)
        self.reduction = reduction
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.scale = scale
        self.softcap = softcap
        self.z_loss = z_loss
        self.loss_dtype = loss_dtype
        self.save = save
        self.options = None  # of torch's
        outputs = math.prod(self.out_features, start=num_classes)
        self.linear = torch.nn.Linear(in_features, outputs, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        linear = self.linear
        outputs = (self.num_classes, *self.out_features)
        return linear_cross_entropy(
            input,
            linear.weight.view(*outputs, linear.in_features),
            target,
            linear_bias=None if linear.bias is None else linear.bias.view(outputs),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            scale=self.scale,
            softcap=self.softcap,
            z_loss=self.z_loss,
            dtype=self.loss_dtype,
            save=self.save,
        )

    def extra_repr(self) -> str:
        shown = {"in_features": self.linear.in_features, "num_classes": self.num_classes}
        defaults = {
            "out_features": (),
            "reduction": "mean",
            "ignore_index": None,
            "label_smoothing": 0.0,
            "scale": 1.0,
            "softcap": None,
            "z_loss": 0.0,
            "loss_dtype": None,
            "save": "auto",
        }
        shown |= {k: getattr(self, k) for k, v in defaults.items() if getattr(self, k) != v}
        return ", ".join(f"{k}={v}" for k, v in shown.items())
