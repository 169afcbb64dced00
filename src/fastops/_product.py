"""linear's matrix product: torch's, with errors that name the op and the argument."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ._autocast import lower_precision
from ._operator import check_parameter

_compiling = torch.compiler.is_dynamo_compiling
_OPTIONAL = (type(None), Tensor)


def check_types(input: object, weight: object, bias: object) -> None:
    if isinstance(input, Tensor) and isinstance(weight, Tensor) and isinstance(bias, _OPTIONAL):
        return
    for name, value in (("input", input), ("weight", weight)):
        if not isinstance(value, Tensor):
            raise TypeError(f"[linear] {name} must be a Tensor, got {type(value).__name__}")
    raise TypeError(f"[linear] bias must be a Tensor or None, got {type(bias).__name__}")


def check_operands(input: Tensor, weight: Tensor, bias: Tensor | None, failed: bool) -> None:
    """Names what torch's product refuses. It takes a bias that broadcasts, too: one is named if the product failed."""
    for name, x in (("weight", weight), ("bias", bias)):
        if x is not None and x.device != input.device:
            raise RuntimeError(f"[linear] {name} must be on input's device {input.device}, got {x.device}")
    if weight.dtype != input.dtype:
        raise RuntimeError(f"[linear] weight must have input's dtype {input.dtype}, got {weight.dtype}")
    if not input.dim():
        raise RuntimeError("[linear] input must have at least 1 dimension, got []")
    row_fits = weight.dim() == 1 and (bias is None or not (failed or input.dim() == 2))
    if weight.dim() != 2 and not row_fits:
        raise RuntimeError(f"[linear] weight must have shape [out_features, in_features], got {list(weight.shape)}")
    if input.shape[-1] != weight.shape[-1]:
        expected = f"weight's in_features {weight.shape[-1]}"
        raise RuntimeError(f"[linear] input must end in {expected}, got shape {list(input.shape)}")
    out = weight.shape[:-1]
    if bias is not None and (failed or not _expands(bias, (*input.shape[:-1], *out))):
        check_parameter("linear", "bias", bias, list(out), input)
    known = input.is_floating_point() or input.is_complex()
    if not known and (failed or input.is_cuda or input.dtype == torch.bool):
        raise RuntimeError(f"[linear] input must be floating point or complex, got {input.dtype}")


def _expands(x: Tensor, shape: Sequence[int]) -> bool:
    pairs = zip(reversed(x.shape), reversed(shape), strict=False)
    return x.dim() <= len(shape) and all(size == whole or size == 1 for size, whole in pairs)


def product(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's, which is asked first: its errors name no op, and to look before it would cost each call."""
    try:
        # Dynamo does not come back from an op that fails. By a meta weight torch returns what lies in memory.
        if not (_compiling() or weight.is_meta):
            return F.linear(input, weight, bias)
    except (AttributeError, RuntimeError, TypeError):
        try:
            check_types(input, weight, bias)
            input, weight, bias = lower_precision(input, weight, bias)  # type: ignore[assignment]
            check_operands(input, weight, bias, failed=True)
        except (RuntimeError, TypeError) as named:
            raise named from None
        raise
    check_types(input, weight, bias)
    input, weight, bias = lower_precision(input, weight, bias)  # type: ignore[assignment]
    check_operands(input, weight, bias, failed=False)
    return F.linear(input, weight, bias)
