"""layer_norm: rows normalised to mean 0 and variance 1, then scaled and shifted."""

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


def layer_norm_reference(
    input: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    dims: int = 1,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Pair:
    """The op in plain PyTorch: output and statistics (mean, shift, rstd)."""
    check("layer_norm", input, dims, weight, bias)
    return layer_forward(input, weight, bias, dims, eps, weight_offset, input)


def layer_norm_backward_reference(
    grad: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Triple:
    """Gradients for input, weight and bias."""
    dims = input.dim() - statistics.dim() + 1
    numbers = eps, weight_offset
    return layer_backward(grad, None, input, dims, weight, bias, need_input, need_weight, need_bias, *numbers)


def _fake(
    statistics: bool,
    input: Tensor,
    weight: Any = None,
    bias: Any = None,
    dims: int = 1,
    *numbers: Any,
) -> Any:
    check("layer_norm", input, dims, weight, bias)
    return fake_outputs(input, None, (weight, bias), dims, (3,) if statistics else None)


def _fake_backward(
    grad: Tensor,
    input: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    need_bias: bool = True,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    dims = input.dim() - statistics.dim() + 1
    return fake_gradients(grad, input, dims, (weight, bias), (need_input, need_weight, need_bias))


_op = norm_operator(
    "layer_norm",
    layer_norm_reference,
    _fake,
    layer_norm_backward_reference,
    _fake_backward,
    layer_native,
    residual=False,
    parameters=2,
)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    r"""Layer normalisation over the trailing dimensions (Ba, Kiros, Hinton 2016, arXiv:1607.06450).

    .. math:: y = \frac{x - \mathrm{E}[x]}{\sqrt{\mathrm{Var}[x] + \epsilon}} \cdot (w + o) + b

    with mean and (biased) variance over the dimensions of ``normalized_shape``. With :math:`h` the normalised input and
    :math:`g = (w + o)\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} =
              \frac{g - \mathrm{E}[g] - h\,\mathrm{E}[g h]}{\sqrt{\mathrm{Var}[x] + \epsilon}},
              \quad \frac{\partial L}{\partial w} = \sum_{rows} h\,\frac{\partial L}{\partial y},
              \quad \frac{\partial L}{\partial b} = \sum_{rows} \frac{\partial L}{\partial y}

    The variance comes from distances from a number near the mean: at most four standard deviations from it for float16
    and bfloat16 on CUDA and eight on the CPU, whose sums are that much finer, a quarter or less for float32 and
    float64. The mean is kept as two numbers, so that small elements keep their digits beside a large one; statistics,
    sums and :math:`w + o` are float32 (float64 for float64). A row's result depends on nothing but the row.

    Args:
        input: ``[*, *normalized_shape]``, any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our
            kernels; other dtypes and devices the plain composition.
        normalized_shape: sizes of the trailing dimensions to normalise over, at least one.
        weight: ``normalized_shape``, any floating dtype. None: no factor.
        bias: likewise. None: 0.
        eps: added to the variance, in the units of ``input`` squared.
        weight_offset: :math:`o`, added to ``weight`` where there is one; 1.0 for weights kept around zero.

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Raises:
        TypeError: an argument of another type.
        RuntimeError: shapes, dtypes or devices that do not fit.

    Tensors of different dtypes are computed in float32, in float64 where one is that, and each gradient has its own
    tensor's dtype. Kernels take rows of one dtype, with parameters of that or float32; others are converted first.

    Without ``weight_offset`` the same as :func:`torch.nn.functional.layer_norm`; under CUDA autocast it likewise
    computes in and returns float32.
    """
    if has_torch_function_variadic(input, weight, bias):
        tensors = input, weight, bias
        return handle_torch_function(
            layer_norm, tensors, input, normalized_shape, weight, bias, eps, weight_offset=weight_offset
        )
    if computes_wide(input):
        input, weight, bias = single_precision(input, weight, bias)  # type: ignore[assignment]
    dims = trailing_dims("layer_norm", input, normalized_shape)
    if type(eps) is not float or type(weight_offset) is not float:
        check_numbers("layer_norm", eps=eps, weight_offset=weight_offset)
    if weight_offset != 0.0:
        return _op.call(input, weight, bias, dims, eps, weight_offset)
    if dims == 1 and eps == 1e-5:
        return _op.call(input, weight, bias)
    return _op.call(input, weight, bias, dims, eps)
