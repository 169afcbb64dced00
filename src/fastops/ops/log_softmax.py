"""log_softmax: scale·x less the logarithm of the sum of e^(scale·x)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._operator import wide
from ..families.row import check, row_arguments, row_operator, scaled


def log_softmax_reference(input: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    check("log_softmax", input, dim, dtype)
    x = input if dtype is None else input.to(dtype)
    return torch.log_softmax(scaled(wide(x), scale), dim).to(x.dtype).contiguous()


def log_softmax_backward_reference(
    grad: Tensor, output: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None
) -> Tensor:
    g, y = wide(grad), wide(output)
    return (scale * (g - y.exp() * g.sum(dim, keepdim=True))).to(dtype or output.dtype).contiguous()


def _native(input: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
    return torch.log_softmax(scaled(input, scale), dim, dtype=dtype).to(dtype or input.dtype)


_op = row_operator("log_softmax", log_softmax_reference, log_softmax_backward_reference, _native)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, *, scale: float = 1.0) -> Tensor:
    r"""Logarithm of the softmax of the scaled input along a dimension.

    .. math:: y_i = s x_i - \log \sum_j e^{s x_j}, \qquad
              \frac{\partial L}{\partial x_i} = s \Bigl(\frac{\partial L}{\partial y_i}
              - e^{y_i} \sum_j \frac{\partial L}{\partial y_j}\Bigr)

    with the largest :math:`s x_j` taken out of the sum, so that nothing overflows. Of the half types it is computed in
    float32, with :math:`s x` not rounded in between, and rounded once. A row's result depends on nothing but the row.

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition. Integers need a ``dtype``.
        dim: along which :math:`e^y` sums to 1; counted from the end where it is negative.
        dtype: the result's, to which ``input`` is converted first. None: ``input``'s. For float32 of a half type the
            kernel makes no converted copy.
        scale: :math:`s`, which may be negative or 0; of logits :math:`1 / T` for a temperature :math:`T`.

    Returns:
        A new contiguous tensor of ``input``'s shape, in nats. A row is NaN if its :math:`s x` are nothing but
        :math:`-\infty`, or have :math:`+\infty` or NaN among them.

    Raises:
        IndexError: ``input`` has no dimension ``dim``.
        RuntimeError: ``input`` or ``dtype`` is not floating point.
        TypeError: an argument of another type.

    Gradients have ``input``'s dtype. Without ``scale`` the same as :func:`torch.log_softmax`; under CUDA autocast it
    likewise computes in and returns float32, unless ``dtype`` says otherwise.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(log_softmax, (input,), input, dim, dtype, scale=scale)
    return _op.call(*row_arguments("log_softmax", input, dim, scale, dtype))
