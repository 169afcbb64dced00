"""relu: max(x, 0)."""

from __future__ import annotations

import torch
from torch import Tensor

from .._operator import elementwise


def relu_reference(input: Tensor) -> Tensor:
    return torch.relu(input)


def relu_backward_reference(grad: Tensor, output: Tensor) -> Tensor:
    return torch.where(output > 0, grad, 0)


_op = elementwise("relu", relu_reference, relu_backward_reference, keeps="output")


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
    return _op.call(input)
