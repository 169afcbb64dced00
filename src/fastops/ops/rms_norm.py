"""rms_norm: rows divided by their root mean square, then scaled."""

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


def rms_norm_reference(
    input: Tensor,
    weight: Tensor | None = None,
    dims: int = 1,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Pair:
    """The op in plain PyTorch: output and rstd, one over the root mean square."""
    check("rms_norm", input, dims, weight, complex_too=True)
    return rms_forward(input, weight, dims, eps, weight_offset, input)


def rms_norm_backward_reference(
    grad: Tensor,
    input: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Pair:
    """Gradients for input and weight."""
    dims = input.dim() - rstd.dim()
    return rms_backward(grad, None, input, dims, weight, need_input, need_weight, eps, weight_offset)


def _fake(
    statistics: bool,
    input: Tensor,
    weight: Any = None,
    dims: int = 1,
    *numbers: Any,
) -> Any:
    check("rms_norm", input, dims, weight, complex_too=True)
    return fake_outputs(input, None, (weight,), dims, () if statistics else None)


def _fake_backward(
    grad: Tensor,
    input: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    need_input: bool = True,
    need_weight: bool = True,
    *numbers: Any,
) -> tuple[Tensor, ...]:
    return fake_gradients(grad, input, input.dim() - rstd.dim(), (weight,), (need_input, need_weight))


_op = norm_operator(
    "rms_norm",
    rms_norm_reference,
    _fake,
    rms_norm_backward_reference,
    _fake_backward,
    rms_native,
    residual=False,
    parameters=1,
)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
) -> Tensor:
    r"""Root mean square normalisation over the trailing dimensions (Zhang, Sennrich 2019, arXiv:1910.07467).

    .. math:: y = \frac{x}{\sqrt{\mathrm{E}[x^2] + \epsilon}} \cdot (w + o)

    with the mean over the dimensions of ``normalized_shape``. With :math:`h` the normalised input and
    :math:`g = (w + o)\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} = \frac{g - h\,\mathrm{E}[g h]}{\sqrt{\mathrm{E}[x^2] + \epsilon}},
              \quad \frac{\partial L}{\partial w} = \sum_{rows} h\,\frac{\partial L}{\partial y}

    Statistics, sums and :math:`w + o` are float32 (float64 for float64). A row's result depends on nothing but the row.

    Args:
        input: ``[*, *normalized_shape]``, any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our
            kernels; other dtypes and devices the plain composition.
        normalized_shape: sizes of the trailing dimensions to normalise over, at least one.
        weight: ``normalized_shape``, any floating dtype. None: no factor.
        eps: added to the mean square, in the units of ``input`` squared. None: 2^-52 if ``input`` is float64 or
            complex128, else 2^-23, whatever ``weight``'s dtype.
        weight_offset: :math:`o`, added to ``weight`` where there is one; 1.0 for weights kept around zero, as Gemma's.

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Raises:
        TypeError: an argument of another type.
        RuntimeError: shapes, dtypes or devices that do not fit.

    Tensors of different dtypes are computed in float32, in float64 where one is that, and each gradient has its own
    tensor's dtype. Kernels take rows of one dtype, with parameters of that or float32; others are converted first.

    Without ``weight_offset`` the same as :func:`torch.nn.functional.rms_norm`; under CUDA autocast it likewise computes
    in and returns float32.
    """
    # torch's jagged tensors know an rms_norm by its name alone, and one without an offset.
    if has_torch_function_variadic(input, weight) and not (isinstance(input, Tensor) and input.is_nested):
        tensors = input, weight
        return handle_torch_function(
            rms_norm, tensors, input, normalized_shape, weight, eps, weight_offset=weight_offset
        )
    if computes_wide(input):
        input, weight = single_precision(input, weight)  # type: ignore[assignment]
    dims = trailing_dims("rms_norm", input, normalized_shape)
    if eps is not None or type(weight_offset) is not float:
        check_numbers("rms_norm", eps=eps, weight_offset=weight_offset)
    if dims == 1 and eps is None and weight_offset == 0.0:
        return _op.call(input, weight)
    return _op.call(input, weight, dims, eps, weight_offset)
