"""layer_norm: rows normalised to mean 0 and variance 1, then scaled and shifted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._autocast import single_precision_on_cuda
from .._operator import Operator, check_parameter, wide

Triple = tuple[Tensor, Tensor, Tensor]


def _check(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None) -> None:
    """What the C++ edge checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    if not input.is_floating_point():
        raise RuntimeError(f"[layer_norm] input must be floating point, got {input.dtype}")
    shape = list(normalized_shape)
    if not shape:
        raise RuntimeError("[layer_norm] normalized_shape must have at least 1 dimension, got []")
    if list(input.shape[max(input.dim() - len(shape), 0) :]) != shape:
        raise RuntimeError(f"[layer_norm] input must end in normalized_shape {shape}, got shape {list(input.shape)}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            check_parameter("layer_norm", name, parameter, shape, input)


def _centred(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x - mean, mean and rstd; the mean of the differences corrects the rounding of the first mean."""
    mean = x.mean(dims, keepdim=True)
    shift = (x - mean).mean(dims, keepdim=True)
    centred = x - mean - shift
    return centred, mean + shift, (centred.square().mean(dims, keepdim=True) + eps).rsqrt()


def layer_norm_reference(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Triple:
    """The op in plain PyTorch: output, mean and rstd."""
    _check(input, normalized_shape, weight, bias)
    dims = tuple(range(-len(normalized_shape), 0))
    centred, mean, rstd = _centred(wide(input), dims, eps)
    out = centred * rstd
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(input.dtype), mean.squeeze(dims), rstd.squeeze(dims)


def layer_norm_backward_reference(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
) -> Triple:
    """Gradients for input, weight and bias. The statistics are made again, so that this can be differentiated."""
    dims = tuple(range(-len(normalized_shape), 0))
    rows = tuple(range(input.dim() - len(normalized_shape)))
    centred, _, rstd = _centred(wide(input), dims, eps)
    g, h = wide(grad), centred * rstd
    nothing = input.new_empty(0)
    grad_weight = grad_bias = grad_input = nothing
    if need_weight:
        grad_weight = _sum(g * h, rows).to(input.dtype if weight is None else weight.dtype)
    if need_bias:
        grad_bias = _sum(g, rows).to(input.dtype if bias is None else bias.dtype)
    if need_input:
        if weight is not None:
            g = g * weight
        mean_gh = (g * h).mean(dims, keepdim=True)
        grad_input = (rstd * (g - g.mean(dims, keepdim=True) - h * mean_gh)).to(input.dtype)
    return grad_input, grad_weight, grad_bias


def _sum(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.sum(dims) if dims else x


def _fake(
    input: Tensor, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Triple:
    _check(input, normalized_shape, weight, bias)
    stat = torch.float64 if input.dtype == torch.float64 else torch.float32
    leading = input.shape[: input.dim() - len(normalized_shape)]
    output = input.new_empty(input.shape)
    return output, input.new_empty(leading, dtype=stat), input.new_empty(leading, dtype=stat)


def _fake_backward(
    grad: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
) -> Triple:
    def parameter(like: Tensor | None, needed: bool) -> Tensor:
        return input.new_empty(normalized_shape if needed else 0, dtype=input.dtype if like is None else like.dtype)

    grad_input = input.new_empty(input.shape if need_input else 0)
    return grad_input, parameter(weight, need_weight), parameter(bias, need_bias)


def _batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    if any(isinstance(d, int) for d in in_dims[1:]):  # normalized_shape has a tuple there
        return None  # one set of parameters an element
    return inputs[0].movedim(in_dims[0], 0), *inputs[1:]


_backward_op = Operator("layer_norm_backward", layer_norm_backward_reference, _fake_backward, outputs=3)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    input, ctx.normalized_shape, weight, bias, ctx.eps = inputs
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[2]:
        ctx.save_for_backward(input, weight, bias, *outputs[1:])
    elif ctx.needs_input_grad[3]:
        ctx.bias_dtype = bias.dtype


def _backward(ctx: Any, grad: Tensor) -> Any:
    if not (ctx.needs_input_grad[0] or ctx.needs_input_grad[2]):  # the bias alone needs nothing of the forward
        rows = tuple(range(grad.dim() - len(ctx.normalized_shape)))
        return None, None, None, _sum(wide(grad), rows).to(ctx.bias_dtype), None
    input, weight, bias, mean, rstd = ctx.saved_tensors
    needs = ctx.needs_input_grad[0], ctx.needs_input_grad[2], ctx.needs_input_grad[3]
    grads = _backward_op.call(grad, input, ctx.normalized_shape, mean, rstd, weight, bias, ctx.eps, *needs)
    grad_input, grad_weight, grad_bias = (g if need else None for g, need in zip(grads, needs, strict=True))
    return grad_input, None, grad_weight, grad_bias, None


_op = Operator("layer_norm", layer_norm_reference, _fake, save=_save, backward=_backward, batch=_batch)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    r"""Layer normalisation over the trailing dimensions (Ba, Kiros, Hinton 2016, arXiv:1607.06450).

    .. math:: y = \frac{x - \mathrm{E}[x]}{\sqrt{\mathrm{Var}[x] + \epsilon}} \cdot w + b

    with mean and (biased) variance over the dimensions of ``normalized_shape``. With :math:`h` the normalised input and
    :math:`g = w\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} =
              \frac{g - \mathrm{E}[g] - h\,\mathrm{E}[g h]}{\sqrt{\mathrm{Var}[x] + \epsilon}},
              \quad \frac{\partial L}{\partial w} = \sum_{rows} h\,\frac{\partial L}{\partial y},
              \quad \frac{\partial L}{\partial b} = \sum_{rows} \frac{\partial L}{\partial y}

    The variance comes from centred values, never from :math:`\mathrm{E}[x^2] - \mathrm{E}[x]^2`; statistics and sums
    are float32 (float64 for float64). A row's result depends on nothing but the row.

    Args:
        input: ``[*, *normalized_shape]``, any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our
            kernels; other dtypes and devices the plain composition.
        normalized_shape: sizes of the trailing dimensions to normalise over, at least one.
        weight: ``normalized_shape``, of ``input``'s dtype, or float32 beside a half-precision input. None: 1.
        bias: likewise. None: 0.
        eps: added to the variance, in the units of ``input`` squared.

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit.

    Same as :func:`torch.nn.functional.layer_norm`; under CUDA autocast it likewise computes in and returns float32.
    """
    input, weight, bias = single_precision_on_cuda(input, weight, bias)  # type: ignore[assignment]
    return _op.call(input, normalized_shape, weight, bias, eps)
