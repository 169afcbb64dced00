"""softmax: e^(scale·x) over its sum."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._operator import wide
from ..families.row import check, row_arguments, row_operator, scaled


def softmax_reference(input: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    check("softmax", input, dim, dtype)
    x = input if dtype is None else input.to(dtype)
    return torch.softmax(scaled(wide(x), scale), dim).to(x.dtype).contiguous()


def softmax_backward_reference(
    grad: Tensor, output: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None
) -> Tensor:
    g, y = wide(grad), wide(output)
    centred = g - (g * y).sum(dim, keepdim=True)
    return (scale * y * centred).to(dtype or output.dtype).contiguous()


def _native(input: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return torch.softmax(scaled(input, scale), dim, dtype=dtype).to(dtype or input.dtype)


_op = row_operator("softmax", softmax_reference, softmax_backward_reference, _native)


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float = 1.0) -> Tensor:
    r"""Softmax of the scaled input along a dimension.

    .. math:: y_i = \frac{e^{s x_i}}{\sum_j e^{s x_j}}, \qquad
              \frac{\partial L}{\partial x_i} = s\,y_i \Bigl(\frac{\partial L}{\partial y_i}
              - \sum_j \frac{\partial L}{\partial y_j}\,y_j\Bigr)

    from :math:`e^{s x_i - \max_j s x_j}`, so that nothing overflows. Of the half types it is computed in float32, with
    :math:`s x` not rounded in between, and rounded once. A row's result depends on nothing but the row.

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition. Integers need a ``dtype``.
        dim: along which the results sum to 1; counted from the end where it is negative.
        dtype: the result's, to which ``input`` is converted first. None: ``input``'s. For float32 of a half type the
            kernel makes no converted copy.
        scale: :math:`s`, which may be negative or 0; of logits :math:`1 / T` for a temperature :math:`T`.

    Returns:
        A new contiguous tensor of ``input``'s shape. A row is NaN if its :math:`s x` are nothing but :math:`-\infty`,
        or have :math:`+\infty` or NaN among them.

    Raises:
        IndexError: ``input`` has no dimension ``dim``.
        RuntimeError: ``input`` or ``dtype`` is not floating point.
        TypeError: an argument of another type.

    Gradients have ``input``'s dtype. Without ``scale`` the same as :func:`torch.softmax`; under CUDA autocast it
    likewise computes in and returns float32, unless ``dtype`` says otherwise.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(softmax, (input,), input, dim, dtype, scale=scale)
    return _op.call(*row_arguments("softmax", input, dim, scale, dtype))
