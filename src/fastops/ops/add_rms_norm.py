"""add_rms_norm: a residual connection and the RMS norm behind it, in one pass."""

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
    norm_operator,
    rms_backward,
    rms_forward,
    rms_native,
    trailing_dims,
)

Pair = tuple[Tensor, Tensor]


def add_rms_norm_reference(
    input: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    dims: int = 1,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The op in plain PyTorch: output, sum and rstd, one over the root mean square."""
    check("add_rms_norm", input, dims, weight, residual=residual, complex_too=True)
    sum = (input + residual).to(residual.dtype).contiguous()
    output, rstd = rms_forward(sum, weight, dims, eps, weight_offset, input)
    return output, sum, rstd


def add_rms_norm_backward_reference(
    grad: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Pair:
    """Gradients for the sum, which is that of input and of residual, and for weight."""
    dims = sum.dim() - rstd.dim()
    return rms_backward(grad, grad_sum, sum, dims, weight, need_input, need_weight, eps, weight_offset)


def _fake(
    statistics: bool,
    input: Tensor,
    residual: Tensor,
    weight: Any = None,
    dims: int = 1,
    *numbers: Any,
) -> Any:
    check("add_rms_norm", input, dims, weight, residual=residual, complex_too=True)
    return fake_outputs(input, residual, (weight,), dims, () if statistics else None)


def _fake_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    sum: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    return fake_gradients(grad, sum, sum.dim() - rstd.dim(), (weight,), (need_input, need_weight))


_op = norm_operator(
    "add_rms_norm",
    add_rms_norm_reference,
    _fake,
    add_rms_norm_backward_reference,
    _fake_backward,
    rms_native,
    residual=True,
    parameters=1,
)


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
) -> Pair:
    r"""A residual connection and the RMS normalisation behind it: ``rms_norm(input + residual)`` and that sum.

    .. math:: s = x + r, \quad y = \frac{s}{\sqrt{\mathrm{E}[s^2] + \epsilon}} \cdot (w + o)

    :math:`s` is rounded to ``residual``'s dtype, and what is normalised is the rounded sum: ``output`` has the bits of
    :func:`fastops.rms_norm` of it. Backward folds both incoming gradients into one pass. With :math:`h` the normalised
    sum and :math:`g = (w + o)\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} = \frac{\partial L}{\partial r} =
              \frac{g - h\,\mathrm{E}[g h]}{\sqrt{\mathrm{E}[s^2] + \epsilon}} + \frac{\partial L}{\partial s}

    rounded once; that of :math:`w` is :func:`fastops.rms_norm`'s.

    Args:
        input: ``[*, *normalized_shape]``, any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our
            kernels; other dtypes and devices the plain composition.
        residual: of ``input``'s shape, any strides and floating dtype.
        normalized_shape: sizes of the trailing dimensions to normalise over, at least one.
        weight: ``normalized_shape``, any floating dtype. None: no factor.
        eps: added to the mean square, in the units of ``input`` squared. None: 2^-52 if ``residual``, and so the sum,
            is float64, else 2^-23, whatever the dtypes of ``input`` and ``weight``.
        weight_offset: :math:`o`, added to ``weight`` where there is one; 1.0 for weights kept around zero, as Gemma's.

    Returns:
        ``(output, input + residual)``, new tensors of ``input``'s shape, of ``input``'s dtype and of ``residual``'s.

    Raises:
        TypeError: an argument of another type.
        RuntimeError: shapes, dtypes or devices that do not fit.

    Tensors of different dtypes are computed in float32, in float64 where one is that, and each gradient has its own
    tensor's dtype. Kernels take rows of one dtype, with parameters of that or float32; others are converted first.

    Under CUDA autocast it computes in and returns float32, as :func:`torch.nn.functional.rms_norm` does.
    """
    if has_torch_function_variadic(input, residual, weight):
        tensors = input, residual, weight
        return handle_torch_function(
            add_rms_norm, tensors, input, residual, normalized_shape, weight, eps, weight_offset=weight_offset
        )
    if computes_wide(input):
        input, residual, weight = single_precision(input, residual, weight)  # type: ignore[assignment]
    dims = trailing_dims("add_rms_norm", input, normalized_shape)
    if eps is not None or type(weight_offset) is not float:
        check_numbers("add_rms_norm", eps=eps, weight_offset=weight_offset)
    if dims == 1 and eps is None and weight_offset == 0.0:
        return _op.call(input, residual, weight)
    return _op.call(input, residual, weight, dims, eps, weight_offset)
