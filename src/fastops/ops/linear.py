"""linear: a GEMM by torch, then bias and activation in one pass of ours."""

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


def linear_epilogue_reference(input: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    _check(input, bias)
    u = wide(input) if bias is None else wide(input) + bias
    return _activate(u, activation).to(input.dtype)


def linear_epilogue_backward_reference(
    grad: Tensor, saved: Tensor, bias: Tensor | None, activation: str, need_bias: bool
) -> tuple[Tensor, Tensor]:
    g, s = wide(grad), wide(saved)
    if bias is not None and activation not in _FROM_OUTPUT:
        s = s + bias
    if activation == "relu":
        g = torch.where(s > 0, g, 0)
    elif activation != "none":
        g = g * _derivative(s, activation)
    bias_dtype = saved.dtype if bias is None else bias.dtype
    grad_bias = g.reshape(-1, g.shape[-1]).sum(0) if need_bias else g.new_empty(0)
    return g.to(saved.dtype), grad_bias.to(bias_dtype)


def _fake(input: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    _check(input, bias)
    return input.new_empty(input.shape)


def _fake_backward(
    grad: Tensor, saved: Tensor, bias: Tensor | None, activation: str, need_bias: bool
) -> tuple[Tensor, Tensor]:
    n = saved.shape[-1] if need_bias else 0
    return saved.new_empty(saved.shape), saved.new_empty(n, dtype=saved.dtype if bias is None else bias.dtype)


def _batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    input, bias, activation = inputs
    if isinstance(in_dims[1], int):
        return None  # one bias an element
    return input.movedim(in_dims[0], 0), bias, activation


_backward_op = Operator("linear_epilogue_backward", linear_epilogue_backward_reference, _fake_backward, outputs=2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    input, bias, ctx.activation = inputs
    saved = None if ctx.activation == "none" else output if ctx.activation in _FROM_OUTPUT else input
    ctx.save_for_backward(saved, bias)


def _backward(ctx: Any, grad: Tensor) -> Any:
    saved, bias = ctx.saved_tensors
    need_bias = ctx.needs_input_grad[1]
    # Without activation nothing of the forward is read; the gradient stands in.
    grad_input, grad_bias = _backward_op.call(grad, grad if saved is None else saved, bias, ctx.activation, need_bias)
    return grad_input, grad_bias if need_bias else None, None


_epilogue = Operator("linear_epilogue", linear_epilogue_reference, _fake, save=_save, backward=_backward, batch=_batch)

# Most in_features, fewest out_features, and the rows from and to which float32 products are taken with their bias, as
# torch's own call is: without one cuBLAS takes other kernels there, up to 20 times slower.
_FEW_ROWS = ((1024, 1, 2, 16), (4096, 128, 5, 11))


def _product_adds(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    # A bias that does not fit goes where it is refused by name. What compiles is not asked for its sizes, which it
    # would then be compiled for.
    if bias is None or not input.is_cuda or not bias.dtype == input.dtype == torch.float32:
        return False
    if bias.device != input.device or torch.compiler.is_compiling() or weight.numel() == 0:
        return False
    out, features = weight.shape
    rows = input.numel() // features
    return any(features <= k and out >= n and first <= rows <= last for k, n, first, last in _FEW_ROWS)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    r"""Affine map with an activation.

    .. math:: y = a(x W^\top + b)

    torch multiplies the matrices; bias and activation are one pass of ours over the product, and so are the
    activation's derivative and the bias gradient. ``relu`` and ``sigmoid`` keep the output for the backward, ``gelu``
    and ``silu`` the product. By few float32 rows on a GPU torch's product adds the bias.

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
        return _epilogue.call(F.linear(input, weight, bias), None, activation or "none")
    return _epilogue.call(F.linear(input, weight), bias, activation or "none")
