"""In which slices a linear layer's classes are walked over, and of how many of them the logits are kept.

The whole logits, [rows, classes], are the largest tensor of a language model's step. A slice of them is in memory for a
moment: it is multiplied, read, and overwritten by the next. What the backward needs again it multiplies again, unless
it was kept. Nothing but shapes, dtypes and the device decides.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .._arguments import type_error

SAVES = ("auto", "logits", "none")


class Slices(NamedTuple):
    width: int  # classes of a slice
    kept: int  # classes, the first ones, whose logits are kept


class _Rule(NamedTuple):
    least: int  # classes of a slice
    multiple: int  # of classes
    least_bytes: int  # of a slice's logits
    vector: int  # bytes: of logits that are kept a row ends with one
    why: str


# A slice is a tenth of the gradients, so that it does not show beside them, but no less than this. Products of classes
# that are no whole vectors take three times as long on a GPU, so that of an odd vocabulary the last few are a slice.
RULES = {
    "cuda": _Rule(1024, 256, 32 << 20, 16, "narrower products are slower, and add to the input's gradient more often"),
    "cpu": _Rule(256, 64, 8 << 20, 1, "a slice stays in the last cache"),
}
MOST_KEPT = 8 << 30  # bytes, by "auto"


def slices(
    save: str, rows: int, features: int, classes: int, logit_bytes: int, input_bytes: int, device: str
) -> Slices:
    """Choose the width of a slice, and how many classes have their logits kept.

    ``logit_bytes`` and ``input_bytes`` are the bytes of an element. Sizes may be symbolic. They are not compared then,
    because a comparison would be a guard of the graph; so ``"auto"`` keeps the logits of any number of rows.
    """
    rule = RULES.get(device, RULES["cuda"])
    classes_are_symbolic = _is_symbolic(classes)
    is_symbolic = classes_are_symbolic or _is_symbolic(rows) or _is_symbolic(features)
    larger = torch.sym_max if is_symbolic else max
    class_bytes = larger(rows, 1) * logit_bytes
    slice_bytes = larger((classes + rows) * features * input_bytes // 10, rule.least_bytes)
    width = larger(slice_bytes // class_bytes // rule.multiple * rule.multiple, rule.least)
    if save == "none":
        return Slices(width, 0)
    if classes_are_symbolic:
        return Slices(width, classes)
    odd = classes * logit_bytes % rule.vector != 0 and classes > rule.multiple
    most = classes // rule.multiple * rule.multiple if odd else classes
    if save == "logits" or is_symbolic:
        return Slices(width, most)
    fitting = MOST_KEPT // class_bytes // width * width
    return Slices(width, min(fitting, most))


def _is_symbolic(size: int) -> bool:
    if torch.compiler.is_dynamo_compiling():  # Dynamo presents a symbolic size as an int
        from torch.fx.experimental.symbolic_shapes import has_static_value

        return not has_static_value(size)
    return isinstance(size, torch.SymInt)


def multiplied_in(dtype: torch.dtype, device: str) -> torch.dtype:
    return torch.float32 if device != "cuda" and dtype in _SLOW_ON_CPU else dtype


def _slow_on_cpu() -> tuple[torch.dtype, ...]:
    """The half types that this CPU has no instructions for: torch's products are faster in float32."""
    asks = {
        torch.bfloat16: ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
        torch.float16: ("_is_amx_fp16_supported",),
    }
    return tuple(d for d, names in asks.items() if not any(getattr(torch.cpu, name, bool)() for name in names))


_SLOW_ON_CPU = _slow_on_cpu()


def check_save(op: str, save: object) -> None:
    if not isinstance(save, str):
        raise type_error(op, "save", "a str", save)
    if save not in SAVES:
        raise ValueError(f"[{op}] save must be 'auto', 'logits' or 'none', got {save!r}")
