"""relu: max(x, 0)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._operator import Operator, elementwise_batch


def relu_reference(input: Tensor) -> Tensor:
    return torch.relu(input)


def relu_backward_reference(grad: Tensor, output: Tensor) -> Tensor:
    return torch.where(output > 0, grad, 0)


_backward_op = Operator(
    "relu_backward",
    relu_backward_reference,
    lambda grad, output: torch.empty_like(output),
    batch=elementwise_batch,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> Any:
    return _backward_op(grad, *ctx.saved_tensors)


_op = Operator("relu", relu_reference, torch.empty_like, save=_save, backward=_backward, batch=elementwise_batch)


def relu(input: Tensor) -> Tensor:
    r"""Elementwise rectified linear unit.

    .. math:: y = \max(x, 0), \qquad
              \frac{\partial L}{\partial x} = \frac{\partial L}{\partial y} \text{ where } x > 0 \text{, else } 0

    NaN stays NaN. The output is kept for the backward, not the input.

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition.

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Same as :func:`torch.nn.functional.relu` without its ``inplace``; nothing of the caller's is ever overwritten.
    """
    return _op(input)
