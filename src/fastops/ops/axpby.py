"""axpby: alpha·x + beta·y."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_numbers, check_tensors, is_complex
from .._operator import Operator, elementwise_batch, wide
from .._promotion import promoted
from ..sharding import pointwise


def _add(x: Tensor, y: Tensor) -> Tensor:
    """torch's sum. Where it refuses the shapes, an error of ours; asked before, sizes would be guarded on."""
    try:
        return torch.add(x, y)
    except RuntimeError:
        if not (x.is_nested or y.is_nested):  # these have no shape
            _check_shapes(x, y)
        raise


def _check_shapes(x: Tensor, y: Tensor) -> None:
    if any(m != n and m != 1 and n != 1 for m, n in zip(reversed(x.shape), reversed(y.shape), strict=False)):
        shapes = f"{list(x.shape)} and {list(y.shape)}"
        raise RuntimeError(f"[axpby] x and y must have shapes that broadcast, got {shapes}")


def axpby_reference(x: Tensor, y: Tensor, alpha: complex = 1.0, beta: complex = 1.0) -> Tensor:
    if not (x.is_floating_point() or x.is_complex()):
        x, y = x.to(torch.get_default_dtype()), y.to(torch.get_default_dtype())
    # torch drops the imaginary part of NumPy's complex64.
    alpha, beta = [complex(n) if is_complex(n) else n for n in (alpha, beta)]
    return _add(alpha * wide(x), beta * wide(y)).to(x.dtype)


def axpby_backward_reference(grad: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    return alpha * grad, beta * grad


def _fake(x: Tensor, y: Tensor, alpha: float = 1.0, beta: float = 1.0) -> Tensor:
    sum = _add(x, y)  # which torch gives the strides of an elementwise op
    return sum if sum.is_floating_point() or sum.is_complex() else sum.to(torch.get_default_dtype())


def _batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
    x, y, alpha, beta = inputs
    rank = max(t.dim() - (d is not None) for t, d in zip((x, y), in_dims, strict=False))

    def lead(t: Tensor, d: int | None) -> Tensor:
        if d is None:
            return t
        t = t.movedim(d, 0)
        return t.reshape(size, *(1,) * (rank + 1 - t.dim()), *t.shape[1:])

    return lead(x, in_dims[0]), lead(y, in_dims[1]), alpha, beta


_backward_op = Operator(
    "axpby_backward",
    axpby_backward_reference,
    lambda grad, alpha, beta: (torch.empty_like(grad), torch.empty_like(grad)),
    outputs=2,
    batch=elementwise_batch,
    sharding=pointwise(linear=True),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, y, ctx.alpha, ctx.beta = inputs
    ctx.shapes = x.shape, y.shape


def _backward(ctx: Any, grad: Tensor) -> Any:
    need_x, need_y = ctx.needs_input_grad[:2]
    x_shape, y_shape = ctx.shapes
    # Sizes are compared only in equal numbers, because each comparison of symbolic sizes is a guard.
    if need_x and need_y and len(x_shape) == len(y_shape) and x_shape == y_shape:
        return *_backward_op.call(grad, ctx.alpha, ctx.beta), None, None
    grad_x = ctx.alpha * grad.sum_to_size(x_shape) if need_x else None
    grad_y = ctx.beta * grad.sum_to_size(y_shape) if need_y else None
    return grad_x, grad_y, None, None


_op = Operator(
    "axpby",
    axpby_reference,
    _fake,
    save=_save,
    backward=_backward,
    batch=_batch,
    sharding=pointwise(linear=True),
)


def axpby(x: Tensor, y: Tensor, alpha: complex = 1.0, beta: complex = 1.0) -> Tensor:
    r"""Scaled sum of two tensors.

    .. math:: z = \alpha x + \beta y, \qquad
              \frac{\partial L}{\partial x} = \alpha\,\frac{\partial L}{\partial z}, \quad
              \frac{\partial L}{\partial y} = \beta\,\frac{\partial L}{\partial z}

    with each gradient summed over the dimensions along which its input was broadcast. Complex :math:`\alpha` and
    :math:`\beta` are conjugated in the gradients, as torch conjugates them.

    Args:
        x, y: shapes that broadcast, any strides, one device. Different dtypes are promoted as in ``x + y``. float16,
            bfloat16, float32 and float64 on CPU and CUDA run our kernels; other dtypes and devices the plain
            composition.
        alpha: factor of ``x``. A real number, or a complex one if the promoted dtype is complex.
        beta: factor of ``y``, the same.

    Returns:
        A new tensor of the broadcast shape and the promoted dtype; integers give the default dtype. The half types are
        computed in float32 and rounded once.

    Raises:
        RuntimeError: shapes that do not broadcast, or tensors on different devices.
        TypeError: x or y is no tensor, alpha or beta is one, or a factor is complex and the promoted dtype is not.
    """
    if has_torch_function_variadic(x, y):
        return handle_torch_function(axpby, (x, y), x, y, alpha, beta)
    check_tensors("axpby", x=x, y=y)
    if x.dtype != y.dtype:
        dtype = promoted((x, y))
        x, y = x.to(dtype), y.to(dtype)
    complex_too = x.is_complex()
    check_numbers("axpby", complex_too, alpha=alpha, beta=beta)
    if complex_too and (is_complex(alpha) or is_complex(beta)):  # the raw op takes real numbers
        return axpby_reference(x, y, alpha, beta)
    return _op.call(x, y, alpha, beta)
