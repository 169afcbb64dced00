"""sigmoid: 1 / (1 + e^-x)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._operator import elementwise, wide


def sigmoid_reference(input: Tensor) -> Tensor:
    return torch.sigmoid(input)


def sigmoid_backward_reference(grad: Tensor, output: Tensor) -> Tensor:
    y = wide(output)
    return (y * (1 - y) * wide(grad)).to(output.dtype)


_op = elementwise("sigmoid", sigmoid_reference, sigmoid_backward_reference, keeps="output")


def sigmoid(input: Tensor) -> Tensor:
    r"""Elementwise logistic function, from :math:`e^{-|x|}`: nothing overflows and both tails keep their digits.

    .. math:: y = \frac{1}{1 + e^{-x}}, \qquad \frac{\partial L}{\partial x} = y\,(1 - y)\,\frac{\partial L}{\partial y}

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition (integers give the default dtype).

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Same as :func:`torch.sigmoid`.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(sigmoid, (input,), input)
    return _op.call(input)
