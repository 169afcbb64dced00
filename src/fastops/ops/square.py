"""square: x·x."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._autocast import computes_wide, single_precision
from .._operator import elementwise, wide


def square_reference(input: Tensor) -> Tensor:
    out = torch.square(wide(input))
    return out.to(input.dtype) if input.is_floating_point() else out


def square_backward_reference(grad: Tensor, input: Tensor) -> Tensor:
    return (2 * wide(input) * wide(grad)).to(input.dtype)


_op = elementwise("square", square_reference, square_backward_reference, keeps="input")


def square(input: Tensor) -> Tensor:
    r"""Elementwise square.

    .. math:: y = x^2, \qquad \frac{\partial L}{\partial x} = 2\,x\,\frac{\partial L}{\partial y}

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition.

    Returns:
        A new tensor of ``input``'s shape and dtype. The half types are computed in float32 and rounded once.

    Same as :func:`torch.square`; under CUDA autocast it likewise computes in and returns float32.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(square, (input,), input)
    if computes_wide(input):
        (input,) = single_precision(input)  # type: ignore[assignment]
    return _op.call(input)
