"""Operands of linear_cross_entropy and linear_log_prob: their checks, the dtype of products, and plain gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_tensors, type_error
from .._autocast import enabled
from .._flops import product
from .._operator import wide
from .likelihood import check_target_dtype
from .row import HALVES
from .slices import SAVES, Slices, multiplied_in, slices

_tracing = torch._C._get_tracing_state


def check_operands(op: str, input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    check_tensors(op, input=input, linear_weight=weight, target=target)
    if bias is not None and not isinstance(bias, Tensor):
        raise type_error(op, "linear_bias", "a Tensor or None", bias)
    if _tracing():  # sizes are tensors, and a question about one is a warning
        return
    for name, x in (("input", input), ("linear_weight", weight), ("linear_bias", bias)):
        if x is not None and not x.is_floating_point():
            raise RuntimeError(f"[{op}] {name} must be floating point, got {x.dtype}")
    if weight.dim() != 2 or not weight.shape[0]:
        raise RuntimeError(
            f"[{op}] linear_weight must have shape [classes, features], classes not 0, got {list(weight.shape)}"
        )
    if not input.dim() or input.shape[-1] != weight.shape[1]:
        expected = f"linear_weight's features {weight.shape[1]}"
        raise RuntimeError(f"[{op}] input must end in {expected}, got shape {list(input.shape)}")
    if target.shape != input.shape[:-1]:
        raise RuntimeError(f"[{op}] target must have shape {list(input.shape[:-1])}, got {list(target.shape)}")
    check_target_dtype(op, target)
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RuntimeError(f"[{op}] linear_bias must have shape {list(weight.shape[:1])}, got {list(bias.shape)}")


def product_of(op: str, input: Tensor, weight: Tensor, bias: Tensor | None) -> torch.dtype | None:
    """Autocast's dtype, where it casts; else all have input's."""
    device = input.device.type
    if input.dtype != torch.float64 and weight.dtype != torch.float64 and enabled(device):
        return torch.get_autocast_dtype(device)
    if weight.dtype != input.dtype:
        raise RuntimeError(f"[{op}] linear_weight must have input's dtype {input.dtype}, got {weight.dtype}")
    if bias is not None and bias.dtype != input.dtype and (bias.dtype, input.dtype in HALVES) != (torch.float32, True):
        raise RuntimeError(f"[{op}] linear_bias must have input's dtype {input.dtype}, got {bias.dtype}")
    return None


def slices_of(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, product: torch.dtype | None, save: str
) -> Slices:
    if _tracing():  # a trace is of the plain composition
        return Slices(1, 0)
    learns = torch.is_grad_enabled() and (
        input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    )
    logit_bytes = operand_dtype(input, product).itemsize
    shapes = (target.numel(), input.shape[-1], weight.shape[0], logit_bytes, input.element_size())
    return slices(save if learns else SAVES[-1], *shapes, input.device.type)


def operand_dtype(input: Tensor, product: torch.dtype | None) -> torch.dtype:
    return multiplied_in(product or input.dtype, input.device.type)


def statistics_of(input: Tensor, product: torch.dtype | None) -> torch.dtype:
    return torch.float64 if operand_dtype(input, product) == torch.float64 else torch.float32


def flat(target: Tensor) -> Tensor:
    return target.reshape(-1).long()


def matrix(x: Tensor) -> Tensor:
    """Return ``x`` of shape [*, n] as [rows, n].

    reshape(-1, n) refuses an n of 0, torch.Size.numel() would make a constant of symbolic rows, and flatten has no rule
    in torch.autograd's own vmap.
    """
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def shaped(result: Tensor, like: Tensor) -> Tensor:
    """In another's shape, and for autograd no view: a result of a function of its own may be changed in place."""
    found: Tensor = torch.ops.aten._unsafe_view(result, like.shape)
    return found


def plain_logits(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """In plain PyTorch, and in float32 of the half types."""
    return F.linear(wide(input), wide(weight), None if bias is None else wide(bias))


class Needs(NamedTuple):
    input: bool
    weight: bool
    bias: bool


def of_linear(
    d: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    needs: Needs,
    input_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """In plain PyTorch the gradients by those of the whole logits."""
    empty = like_operands(input, weight, bias, Needs(False, False, False), input_dtype)
    d, x = matrix(d), matrix(wide(input))
    return (
        (d @ wide(weight)).to(empty[0].dtype).view(input.shape) if needs.input else empty[0],
        (d.t() @ x).to(weight.dtype) if needs.weight else empty[1],
        d.sum(0).to(empty[2].dtype) if needs.bias else empty[2],
    )


def like_operands(
    input: Tensor, weight: Tensor, bias: Tensor | None, needs: Needs, input_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Empty gradients, of no element where they are not needed."""
    like = weight if bias is None else bias
    return (
        input.new_empty(input.shape if needs.input else 0, dtype=input_dtype),
        weight.new_empty(weight.shape if needs.weight else 0),
        like.new_empty(weight.shape[:1] if needs.bias else 0),
    )


# The largest number that is rounded to 0, and the smallest that is rounded to infinity. torch.compile has no ctypes.
_ZERO_IN_FLOAT32, _INFINITE_IN_FLOAT32 = 2.0**-150, (2 - 2.0**-24) * 2.0**127


def check_softcap(op: str, softcap: float | None, statistics: torch.dtype) -> None:
    """As the kernels get it."""
    if softcap is None or statistics == torch.float64 or isinstance(softcap, torch.SymFloat):
        return
    if not _ZERO_IN_FLOAT32 < softcap < _INFINITE_IN_FLOAT32:
        raise RuntimeError(f"[{op}] softcap must be finite and greater than 0 in float32, got {softcap}")


def check_schedule(op: str, classes: int, width: int, kept: int) -> None:
    """Of raw ops: the public functions make them."""
    if width < 1 or not 0 <= kept <= classes:
        raise RuntimeError(f"[{op}] width must be 1 or more and kept 0 to {classes}, got {width} and {kept}")


def forward_flops(input: torch.Size, weight: torch.Size, *others: Any) -> int:
    """Return the FLOPs of x Wᵀ from the shapes of both."""
    return product(math.prod(input[:-1]), input[-1], weight[0])


def gradient_flops(input: torch.Size, weight: torch.Size, logits: torch.Size, needs: Needs) -> int:
    """Return the FLOPs of the gradients: a product for each of input and weight, and the logits that were not kept."""
    (classes, features), rows = weight, math.prod(input[:-1])
    wanted = (needs.input + needs.weight) * product(rows, features, classes)
    return wanted + product(rows, features, classes - logits[1])
