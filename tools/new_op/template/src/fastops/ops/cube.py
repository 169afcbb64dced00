"""cube: x³."""

from __future__ import annotations

from torch import Tensor

from .._operator import elementwise, wide


def cube_reference(input: Tensor) -> Tensor:
    x = wide(input)
    return (x * x * x).to(input.dtype)


def cube_backward_reference(grad: Tensor, input: Tensor) -> Tensor:
    x = wide(input)
    return (3 * x * x * wide(grad)).to(input.dtype)


_op = elementwise("cube", cube_reference, cube_backward_reference, keeps="input")


def cube(input: Tensor) -> Tensor:
    r"""Elementwise cube.

    .. math:: y = x^3, \qquad \frac{\partial L}{\partial x} = 3\,x^2\,\frac{\partial L}{\partial y}

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition.

    Returns:
        A new tensor of ``input``'s shape and dtype. The half types are computed in float32 and rounded once.
    """
    return _op.call(input)
