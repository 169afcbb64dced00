"""add_layer_norm: a residual connection and the layer norm behind it, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_numbers
from .._autocast import computes_wide, single_precision
from .._norm import (
    check,
    fake_gradients,
    fake_outputs,
    layer_backward,
    layer_forward,
    layer_native,
    norm_operator,
    trailing_dims,
)

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def add_layer_norm_reference(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    dims: int = 1,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Triple:
    """The op in plain PyTorch: output, sum and statistics (mean, shift, rstd)."""
    check("add_layer_norm", input, dims, weight, bias, residual)
    sum = (input + residual).to(residual.dtype).contiguous()
    output, statistics = layer_forward(sum, weight, bias, dims, eps, weight_offset, input)
    return output, sum, statistics


def add_layer_norm_backward_reference(
    grad: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Triple:
    """Gradients for the sum, which is that of input and of residual, for weight and for bias."""
    dims = sum.dim() - statistics.dim() + 1
    numbers = eps, weight_offset
    return layer_backward(grad, grad_sum, sum, dims, weight, bias, need_input, need_weight, need_bias, *numbers)


def _fake(
    statistics: bool,
    input: Tensor,
    residual: Tensor,
    weight: Any = None,
    bias: Any = None,
    dims: int = 1,
    *numbers: Any,
) -> Any:
    check("add_layer_norm", input, dims, weight, bias, residual)
    return fake_outputs(input, residual, (weight, bias), dims, (3,) if statistics else None)


def _fake_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    dims = sum.dim() - statistics.dim() + 1
    return fake_gradients(grad, sum, dims, (weight, bias), (need_input, need_weight, need_bias))


_op = norm_operator(
    "add_layer_norm",
    add_layer_norm_reference,
    _fake,
    add_layer_norm_backward_reference,
    _fake_backward,
    layer_native,
    residual=True,
    parameters=2,
)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> Pair:
    r"""A residual connection and the layer normalisation behind it: ``layer_norm(input + residual)`` and that sum.

    .. math:: s = x + r, \quad y = \frac{s - \mathrm{E}[s]}{\sqrt{\mathrm{Var}[s] + \epsilon}} \cdot (w + o) + b

    :math:`s` is rounded to ``residual``'s dtype, and what is normalised is the rounded sum: ``output`` has the bits of
    :func:`fastops.layer_norm` of it. Backward folds both incoming gradients into one pass. With :math:`h` the
    normalised sum and :math:`g = (w + o)\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} = \frac{\partial L}{\partial r} =
              \frac{g - \mathrm{E}[g] - h\,\mathrm{E}[g h]}{\sqrt{\mathrm{Var}[s] + \epsilon}}
              + \frac{\partial L}{\partial s}

    rounded once; those of :math:`w` and :math:`b` are :func:`fastops.layer_norm`'s.

    Args:
        input: ``[*, *normalized_shape]``, any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our
            kernels; other dtypes and devices the plain composition.
        residual: of ``input``'s shape, any strides and floating dtype.
        normalized_shape: sizes of the trailing dimensions to normalise over, at least one.
        weight: ``normalized_shape``, any floating dtype. None: no factor.
        bias: likewise. None: 0.
        eps: added to the variance, in the units of ``input`` squared.
        weight_offset: :math:`o`, added to ``weight`` where there is one; 1.0 for weights kept around zero.

    Returns:
        ``(output, input + residual)``, new tensors of ``input``'s shape, of ``input``'s dtype and of ``residual``'s.

    Raises:
        TypeError: an argument of another type.
        RuntimeError: shapes, dtypes or devices that do not fit.

    Tensors of different dtypes are computed in float32, in float64 where one is that, and each gradient has its own
    tensor's dtype. Kernels take rows of one dtype, with parameters of that or float32; others are converted first.

    Under CUDA autocast it computes in and returns float32, as :func:`torch.nn.functional.layer_norm` does.
    """
    if has_torch_function_variadic(input, residual, weight, bias):
        tensors = input, residual, weight, bias
        return handle_torch_function(
            add_layer_norm, tensors, input, residual, normalized_shape, weight, bias, eps, weight_offset=weight_offset
        )
    if computes_wide(input):
        input, residual, weight, bias = single_precision(input, residual, weight, bias)  # type: ignore[assignment]
    dims = trailing_dims("add_layer_norm", input, normalized_shape)
    if type(eps) is not float or type(weight_offset) is not float:
        check_numbers("add_layer_norm", eps=eps, weight_offset=weight_offset)
    if weight_offset != 0.0:
        return _op.call(input, residual, weight, bias, dims, eps, weight_offset)
    if dims == 1 and eps == 1e-5:
        return _op.call(input, residual, weight, bias)
    return _op.call(input, residual, weight, bias, dims, eps)
