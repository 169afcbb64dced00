"""square: x·x."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._autocast import single_precision_on_cuda
from .._operator import Operator, elementwise_batch, wide


def square_reference(input: Tensor) -> Tensor:
    out = torch.square(wide(input))
    return out.to(input.dtype) if input.is_floating_point() else out


def square_backward_reference(grad: Tensor, input: Tensor) -> Tensor:
    return (2 * wide(input) * wide(grad)).to(input.dtype)


_backward_op = Operator(
    "square_backward",
    square_backward_reference,
    lambda grad, input: torch.empty_like(input),
    batch=elementwise_batch,
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> Any:
    return _backward_op(grad, *ctx.saved_tensors)


_op = Operator("square", square_reference, torch.empty_like, save=_save, backward=_backward, batch=elementwise_batch)


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
    (input,) = single_precision_on_cuda(input)  # type: ignore[assignment]
    return _op(input)
