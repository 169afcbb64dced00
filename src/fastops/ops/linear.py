"""linear: a GEMM by torch, then activation, and mostly the bias, in one pass of ours."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._autocast import lower_precision
from .._operator import Operator, check_parameter, wide

ACTIVATIONS = ("relu", "sigmoid", "gelu", "silu")
_FROM_OUTPUT = ("relu", "sigmoid")  # their derivative is a function of the output


def _normal_cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.erfc(u * -0.7071067811865476)  # 1 + erf would cancel in the left tail


def check_activation(op: str, activation: str | None) -> None:
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(f"[{op}] activation must be None or one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def _activate(u: Tensor, activation: str) -> Tensor:
    if activation == "relu":
        return torch.where(u <= 0, 0, u)
    if activation == "gelu":
        return u * _normal_cdf(u)
    if activation == "silu":
        return u * torch.sigmoid(u)
    return torch.sigmoid(u) if activation == "sigmoid" else u


def _derivative(s: Tensor, activation: str) -> Tensor:
    """At the output for relu and sigmoid, at the input for gelu and silu."""
    if activation == "sigmoid":
        return s * (1 - s)
    if activation == "gelu":
        pdf = torch.exp(-0.5 * s * s) * 0.3989422804014327
        return _normal_cdf(s) + s * pdf
    y = torch.sigmoid(s)
    return y * (1 + s * (1 - y))


def _check(input: Tensor, bias: Tensor | None) -> None:
    """What the C++ edge checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    if not input.is_floating_point():
        raise RuntimeError(f"[linear] input must be floating point, got {input.dtype}")
    if bias is not None:
        check_parameter("linear", "bias", bias, [input.shape[-1]], input)


def _with_bias(product: Tensor, bias: Tensor | None, bias_added: bool) -> Tensor:
    """A bias that is in the product already adds 0, and its derivative."""
    if bias is None:
        return product
    if bias_added:
        bias = torch.where(bias.isfinite(), bias - bias.detach(), 0)
    return product + bias


def linear_epilogue_reference(input: Tensor, bias: Tensor | None, activation: str, bias_added: bool = False) -> Tensor:
    _check(input, bias)
    return _activate(_with_bias(wide(input), bias, bias_added), activation).to(input.dtype)


def linear_epilogue_backward_reference(
    grad: Tensor, saved: Tensor, bias: Tensor | None, activation: str, need_bias: bool, bias_added: bool = False
) -> tuple[Tensor, Tensor]:
    g, s = wide(grad), wide(saved)
    if activation not in _FROM_OUTPUT:
        s = _with_bias(s, bias, bias_added)
    if activation == "relu":
        g = torch.where(s <= 0, 0, g)
    elif activation != "none":
        g = g * _derivative(s, activation)
    bias_dtype = saved.dtype if bias is None else bias.dtype
    grad_bias = g.reshape(-1, g.shape[-1]).sum(0) if need_bias else g.new_empty(0)
    return g.to(saved.dtype), grad_bias.to(bias_dtype)


def _fake(input: Tensor, bias: Tensor | None, activation: str, bias_added: bool = False) -> Tensor:
    _check(input, bias)
    return input.new_empty(input.shape)


def _fake_backward(
    grad: Tensor, saved: Tensor, bias: Tensor | None, activation: str, need_bias: bool, bias_added: bool = False
) -> tuple[Tensor, Tensor]:
    n = saved.shape[-1] if need_bias else 0
    return saved.new_empty(saved.shape), saved.new_empty(n, dtype=saved.dtype if bias is None else bias.dtype)


def _batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    input, *others = inputs
    if isinstance(in_dims[1], int):
        return None  # one bias an element
    return input.movedim(in_dims[0], 0), *others


_backward_op = Operator("linear_epilogue_backward", linear_epilogue_backward_reference, _fake_backward, outputs=2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, bias, ctx.activation, ctx.bias_added = inputs
    saved = None if ctx.activation == "none" else output if ctx.activation in _FROM_OUTPUT else input
    ctx.save_for_backward(saved, bias)


def _backward(ctx: Any, grad: Tensor) -> Any:
    saved, bias = ctx.saved_tensors
    need_bias = ctx.needs_input_grad[1]
    # Without activation nothing of the forward is read; the gradient stands in.
    kept = grad if saved is None else saved
    grad_input, grad_bias = _backward_op.call(grad, kept, bias, ctx.activation, need_bias, ctx.bias_added)
    return grad_input, grad_bias if need_bias else None, None, None


_epilogue = Operator("linear_epilogue", linear_epilogue_reference, _fake, save=_save, backward=_backward, batch=_batch)

# Where torch's product takes the bias, as its own call does. cuBLAS has other kernels without one. In float32 they are
# up to 20 times slower by few rows: most features in, fewest out, rows from and to.
_FEW_ROWS = ((1024, 1, 2, 16), (4096, 128, 5, 11))
# They are mostly level, and our pass faster without a bias, by rows from _MANY on, where as many features come out as
# _WIDE and fewer than _DEEP go in, or where the product has _LARGE numbers. By other rows they are up to three times
# as fast.
_MANY, _WIDE, _DEEP, _LARGE = 512, 64, 512, 2**21
# In the half types, where features in or out are no whole vectors: in one size of eight, up to three quarters slower.
# Of whole ones all are faster.
_VECTOR = 8


def _product_adds(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    # A bias that does not fit goes where it is refused by name. What compiles is not asked for its sizes, which it
    # would then be compiled for.
    if bias is None or not input.is_cuda or bias.dtype != input.dtype or input.dtype == torch.float64:
        return False
    if bias.device != input.device or torch.compiler.is_compiling() or weight.numel() == 0:
        return False
    out, features = weight.shape
    if input.dtype != torch.float32:
        return out % _VECTOR != 0 or features % _VECTOR != 0
    rows = input.numel() // features
    if rows >= _MANY:
        return out >= _WIDE and (features < _DEEP or rows * out >= _LARGE)
    return any(features <= k and out >= n and first <= rows <= last for k, n, first, last in _FEW_ROWS)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    r"""Affine map with an activation.

    .. math:: y = a(x W^\top + b)

    torch multiplies the matrices; bias and activation are one pass of ours over the product, and so are the
    activation's derivative and the bias gradient. ``relu`` and ``sigmoid`` keep the output for the backward, ``gelu``
    and ``silu`` the product. On a GPU torch's product adds the bias where it may be slower without: in the half types
    where features in or out are no multiple of 8, in float32 mostly by up to 16 rows and from 512 on.

    Args:
        input: ``[*, in_features]``, any strides.
        weight: ``[out_features, in_features]``, of ``input``'s dtype.
        bias: ``[out_features]``, of ``input``'s dtype, or float32 beside a half-precision input. None: 0.
        activation: None, ``"relu"``, ``"sigmoid"``, ``"gelu"`` (exact, by the normal distribution function) or
            ``"silu"``.

    Returns:
        ``[*, out_features]`` of ``input``'s dtype.

    Raises:
        ValueError: an unknown activation.
        RuntimeError: shapes, dtypes or devices that do not fit.

    With ``activation=None`` and a bias of ``input``'s dtype this is :func:`torch.nn.functional.linear` itself. Under
    autocast all tensors are cast to its dtype, as torch does.
    """
    if activation is None and isinstance(input, Tensor) and (bias is None or bias.dtype == input.dtype):
        return F.linear(input, weight, bias)  # which sees to autocast itself
    check_activation("linear", activation)
    input, weight, bias = lower_precision(input, weight, bias)  # type: ignore[assignment]
    if activation is None and (bias is None or bias.dtype == input.dtype):
        return F.linear(input, weight, bias)
    if weight.dim() != 2:
        raise RuntimeError(f"[linear] weight must have shape [out_features, in_features], got {list(weight.shape)}")
    if bias is not None and not (bias.dim() == 1 and bias.size(0) == weight.size(0)):
        raise RuntimeError(f"[linear] bias must have shape {list(weight.shape[:1])}, got {list(bias.shape)}")
    if _product_adds(input, weight, bias):
        # The product leaves the bias gradient to our pass, which makes it on its way.
        product = F.linear(input, weight, bias.detach())  # type: ignore[union-attr]
        return _epilogue.call(product, bias, activation or "none", True)
    return _epilogue.call(F.linear(input, weight), bias, activation or "none", False)
