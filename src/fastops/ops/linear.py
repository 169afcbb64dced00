"""linear: a GEMM by torch, then activation, and mostly the bias, in one pass of ours."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import _C
from .._autocast import lower_precision
from .._operator import Operator, check_parameter, sum_of_rows, wide
from .._product import check_operands, check_types, product
from ..sharding import EMPTY, Call, Output, Split, added_up, apart, broadcast, pointwise

# tanh's form of gelu is u·sigmoid(2z), z = sqrt(2 / pi)·(u + 0.044715·u³), and 2z = u·(_FIRST + _THIRD·u²). From _MOST
# on sigmoid(2z) is 0 or 1 in every dtype; beyond, the powers of u would overflow and make the derivative NaN.
_FIRST, _THIRD, _MOST = 1.5957691216057308, 0.07135481627260025, 22.0


def _normal_cdf(u: Tensor) -> Tensor:
    return 0.5 * torch.erfc(u * -0.7071067811865476)  # 1 + erf would cancel in the left tail


def _logistic_normal_cdf(u: Tensor) -> Tensor:
    u = u.clamp(-_MOST, _MOST)
    t = u * (_FIRST + _THIRD * u * u)
    # 1 + tanh would cancel in the left tail, and in the right one the derivative of sigmoid, y·(1 - y).
    return torch.where(t < 0, torch.sigmoid(t), 1 - torch.sigmoid(-t))


def _gelu_derivative(u: Tensor) -> Tensor:
    return _normal_cdf(u) + u * (torch.exp(-0.5 * u * u) * 0.3989422804014327)


def _gelu_tanh_derivative(u: Tensor) -> Tensor:
    y = _logistic_normal_cdf(u)
    return y + u * (y * _logistic_normal_cdf(-u) * (_FIRST + 3 * _THIRD * u.clamp(-_MOST, _MOST).square()))


def _silu_derivative(u: Tensor) -> Tensor:
    y = torch.sigmoid(u)
    return y * (1 + u * (1 - y))


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda u: u,
    "relu": lambda u: torch.where(u <= 0, 0, u),
    "sigmoid": torch.sigmoid,
    "gelu": lambda u: u * _normal_cdf(u),
    "gelu_tanh": lambda u: u * _logistic_normal_cdf(u),
    "silu": lambda u: u * torch.sigmoid(u),
}
_NATIVE: dict[str, Callable[[Tensor], Tensor]] = {  # torch's own
    "none": lambda u: u,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
ACTIVATIONS = tuple(name for name in _FUNCTIONS if name != "none")
_FROM_OUTPUT = ("relu", "sigmoid")  # their derivative is a function of the output
_DERIVATIVES: dict[str, Callable[[Tensor], Tensor]] = {  # of relu it would be a product, and 0·inf is NaN
    "sigmoid": lambda y: y * (1 - y),
    "gelu": _gelu_derivative,
    "gelu_tanh": _gelu_tanh_derivative,
    "silu": _silu_derivative,
}


def check_activation(op: str, activation: str | None) -> None:
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        raise ValueError(f"[{op}] activation must be None or one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def _check_name(op: str, activation: str) -> None:
    if activation not in _FUNCTIONS:
        raise RuntimeError(f"[{op}] activation must be one of {', '.join(_FUNCTIONS)}, got {activation}")


def _check(input: Tensor, bias: Tensor | None, activation: str) -> None:
    """What the C++ edge checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    if not input.is_floating_point():
        raise RuntimeError(f"[linear] input must be floating point, got {input.dtype}")
    if not input.dim():
        raise RuntimeError("[linear] input must have at least 1 dimension, got []")
    _check_name("linear", activation)
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
    _check(input, bias, activation)
    output = _FUNCTIONS[activation](_with_bias(wide(input), bias, bias_added))
    return output.to(input.dtype, copy=output is input)


def _native(product: Tensor, bias: Tensor | None, activation: str, bias_added: bool = False) -> Tensor:
    return _NATIVE[activation](_with_bias(product, bias, bias_added)).to(product.dtype)


def linear_epilogue_backward_reference(
    grad: Tensor, saved: Tensor, bias: Tensor | None, activation: str, need_bias: bool, bias_added: bool = False
) -> tuple[Tensor, Tensor]:
    _check_name("linear_epilogue_backward", activation)
    g, s = wide(grad), wide(saved)
    if activation not in _FROM_OUTPUT:
        s = _with_bias(s, bias, bias_added)
    if activation == "relu":
        g = torch.where(s <= 0, 0, g)
    elif activation != "none":
        g = g * _DERIVATIVES[activation](s)
    bias_dtype = saved.dtype if bias is None else bias.dtype
    grad_bias = sum_of_rows(g) if need_bias else g.new_empty(0)
    return g.to(saved.dtype, copy=g is grad), grad_bias.to(bias_dtype)


def _fake(input: Tensor, bias: Tensor | None, activation: str, bias_added: bool = False) -> Tensor:
    _check(input, bias, activation)
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


def _sharding_backward(call: Call) -> Split:
    inputs, rank = broadcast(call)
    *rows, features = range(rank)
    of_bias = Output((features,), sums=tuple(rows)) if call["need_bias"] else EMPTY
    return Split(inputs, [Output((*rows, features)), of_bias], apart(range(rank)))


_backward_op = Operator(
    "linear_epilogue_backward",
    linear_epilogue_backward_reference,
    _fake_backward,
    outputs=2,
    sharding=_sharding_backward,
)


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


_epilogue = Operator(
    "linear_epilogue",
    linear_epilogue_reference,
    _fake,
    save=_save,
    backward=_backward,
    native=_native,
    batch=_batch,
    sharding=pointwise(),
)


def _product_adds(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    # A bias that does not fit goes where it is refused by name. What compiles is not asked for its sizes, which it
    # would then be compiled for. The table is cpp/plan/linear.h.
    if bias is None or not input.is_cuda or bias.dtype != input.dtype or input.dtype == torch.float64:
        return False
    if bias.device != input.device or torch.compiler.is_compiling() or weight.numel() == 0:
        return False
    outputs, features = weight.shape
    return _C.library_adds_bias(input.element_size(), input.numel() // features, features, outputs)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    r"""Affine map with an activation.

    .. math:: y = a(x W^\top + b)

    torch multiplies the matrices; bias and activation are one pass of ours over the product, and so are the
    activation's derivative and the bias gradient. :math:`a(u)` is

    * ``relu``: :math:`\max(u, 0)`
    * ``sigmoid``: :math:`\sigma(u) = 1 / (1 + e^{-u})`
    * ``gelu``: :math:`u\,\Phi(u)`, by the normal distribution function
    * ``gelu_tanh``: :math:`\tfrac{u}{2} (1 + \tanh z) = u\,\sigma(2 z)` with
      :math:`z = \sqrt{2 / \pi}\,(u + 0.044715\,u^3)`, near ``gelu``; what ``approximate="tanh"`` is to
      :func:`torch.nn.functional.gelu`
    * ``silu``: :math:`u\,\sigma(u)`

    Both forms of gelu keep the digits of small results: no 1 is added to what lies near -1. ``relu`` and ``sigmoid``
    keep the output for the backward, the others the product. On a GPU torch's product adds the bias where it may be
    slower without: in the half types where features in or out are no multiple of 8, in float32 mostly by up to 16 rows
    and from 512 on.

    Args:
        input: ``[*, in_features]``, any strides.
        weight: ``[out_features, in_features]``, of ``input``'s dtype; or ``[in_features]`` without a bias, for one
            feature whose dimension the result does not have.
        bias: ``[out_features]``, of ``input``'s dtype, or float32 beside a half-precision input. None: 0.
        activation: None, ``"relu"``, ``"sigmoid"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.

    Returns:
        ``[*, out_features]`` of ``input``'s dtype.

    Raises:
        ValueError: an unknown activation.
        TypeError: what is no Tensor.
        RuntimeError: shapes, dtypes or devices that do not fit.

    With ``activation=None`` and a bias of ``input``'s dtype this is :func:`torch.nn.functional.linear` itself, but for
    the texts of errors. Under autocast all tensors are cast to its dtype, as torch does.
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(linear, (input, weight, bias), input, weight, bias, activation)
    if (
        activation is None
        and isinstance(input, Tensor)
        and (bias is None or (isinstance(bias, Tensor) and bias.dtype == input.dtype))
    ):
        return product(input, weight, bias)  # which sees to autocast itself
    check_activation("linear", activation)
    check_types(input, weight, bias)
    input, weight, bias = lower_precision(input, weight, bias)  # type: ignore[assignment]
    if activation is None and (bias is None or bias.dtype == input.dtype):
        return product(input, weight, bias)
    if input.is_nested:  # to which torch adds a bias in its product alone
        return _NATIVE[activation or "none"](product(input, weight, bias))
    if bias is None and weight.dim() == 1:
        return linear(input, weight.unsqueeze(0), None, activation).squeeze(-1)
    if bias is not None and not (
        bias.dim() == 1 and weight.dim() == 2 and bias.size(0) == weight.size(0) and bias.is_meta == input.is_meta
    ):
        check_operands(input, weight, bias, failed=True)
    if _product_adds(input, weight, bias):
        # The product leaves the bias gradient to our pass, which makes it on its way.
        added = added_up(product(input, weight, bias.detach()))  # type: ignore[union-attr]
        return _epilogue.call(added, bias, activation or "none", True)
    return _epilogue.call(added_up(product(input, weight)), bias, activation or "none", False)
