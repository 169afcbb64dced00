"""What cross_entropy and log_prob share: logits, rows that are ignored, and the checks of their arguments.

The plain compositions put 0 in the place of ignored rows *before* anything is computed of them, so that their results
are 0 and all their derivatives exactly 0, whatever such a row holds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import check_numbers, type_error
from .._operator import wide
from ..sharding import Call, Dims, Split, apart

_compiling = torch.compiler.is_dynamo_compiling
_tracing = torch._C._get_tracing_state
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


Triple = tuple[Tensor, Tensor, Tensor]

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
NONE, MEAN, SUM = REDUCTIONS.values()


class Rows(NamedTuple):
    """Rows of logits, classes last."""

    kept: Tensor  # whether the row's target is another than ignore_index
    target: Tensor  # of ignored rows 0
    logits: Tensor  # u = scale·x, or softcap·tanh(scale·x / softcap); of ignored rows 0
    slope: Tensor | float  # du/dx


def rows_of(
    op: str,
    x: Tensor,
    target: Tensor,
    ignore_index: int,
    scale: float,
    softcap: float | None,
    classes: int | None = None,
) -> Rows:
    """The rows of ``x``, computed in float32 of the half types. ``classes``: of so many x has some.

    Of a target that is no class: IndexError on the CPU, NaN on GPUs and where values cannot be looked at.
    """
    target = target.long()  # a uint8 compares with an ignore_index below 0 as if that were one too
    kept = target != ignore_index
    n = x.shape[-1] if classes is None else classes
    in_range = (target >= 0) & (target < n)
    known = check_targets(op, target, kept, in_range, n, ignore_index)
    u = torch.where(kept.unsqueeze(-1), wide(x), 0)
    if not known:
        u = u * torch.where(in_range | ~kept, 1.0, torch.nan).to(u.dtype).unsqueeze(-1)
    return Rows(kept, torch.where(kept & in_range, target, 0), *capped(u, scale, softcap))


def capped(x: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, Tensor | float]:
    """u and du/dx."""
    u = x if scale == 1.0 else x * scale
    if softcap is None:
        return u, scale
    t = torch.tanh(u / softcap)
    return t * softcap, scale * (1 - t.square())


def _has_values(target: Tensor) -> bool:
    """Whether they can be looked at, and nobody waits for a GPU."""
    return not (_compiling() or _tracing() or type(target) is not Tensor or not target.is_cpu or _wrapped(target))


def check_targets(op: str, target: Tensor, kept: Tensor, in_range: Tensor, n: int, ignore_index: int) -> bool:
    """Whether it is known that each target is a class. On the CPU IndexError if one is not."""
    if not _has_values(target):
        return False
    wrong = target[kept & ~in_range]
    if wrong.numel():
        raise IndexError(
            f"[{op}] target must be 0 to {n - 1} or ignore_index {ignore_index}, got {wrong.reshape(-1)[0].item()}"
        )
    return True


def check_classes(op: str, target: Tensor, ignore_index: int, classes: int) -> None:
    """IndexError for the first target that is none, where values can be looked at."""
    if not _has_values(target):  # the questions below would be kernels on a GPU
        return
    y = target.long()
    check_targets(op, y, y != ignore_index, (y >= 0) & (y < classes), classes, ignore_index)


def at_target(values: Tensor, target: Tensor) -> Tensor:
    """Of each row the target's."""
    # ONNX's own evaluation does not count dimensions from the end.
    return values.gather(values.dim() - 1, target.unsqueeze(-1)).squeeze(-1)


def one_hot(target: Tensor, like: Tensor, first_class: int = 0) -> Tensor:
    # arange would be no DTensor beside one, which torch.func wraps past telling.
    classes = target.new_ones(like.shape[-1], dtype=torch.int64).cumsum(0) + (first_class - 1)
    return (target.unsqueeze(-1) == classes).to(like.dtype)


def weights_of(
    weight: Tensor | None, kept: Tensor, target: Tensor, like: Tensor, classes: int
) -> tuple[Tensor | None, Tensor, Tensor | int]:
    """The weights in the dtype that is computed in, of each row its target's, 0 of ignored ones, and all summed up."""
    if weight is None:
        return None, kept.to(like.dtype), classes
    w = weight.to(like.dtype)
    # index_select takes indices of one dimension; under vmap w[target] would look at values.
    of_target = w.index_select(0, target.reshape(-1)).view(target.shape)
    return w, torch.where(kept, of_target, 0), w.sum()


def of_each_class(label_smoothing: float, classes: int | Tensor, like: Tensor) -> Any:
    """ε / V, what smoothing gives to each class."""
    if isinstance(classes, Tensor):  # in a trace, where the quotient would be of the default dtype
        classes = classes.to(like.dtype)
    return label_smoothing / max(classes, 1)


def losses_of(
    rows: Rows, weight: Tensor | None, reduction: int, label_smoothing: float, z_loss: float, dtype: torch.dtype
) -> Triple:
    kept, y, u, _ = rows
    w, row_weight, _ = weights_of(weight, kept, y, u, u.shape[-1])
    log_p, lse = torch.log_softmax(u, -1), torch.logsumexp(u, -1)
    loss = -at_target(log_p, y) if weight is None else -row_weight * at_target(log_p, y)
    if label_smoothing:
        smooth = -(log_p if w is None else log_p * w).sum(-1)
        loss = (1 - label_smoothing) * loss + of_each_class(label_smoothing, u.shape[-1], u) * smooth
    return reduced(loss, lse, kept, row_weight, reduction, z_loss, dtype)


def reduced(
    loss: Tensor, lse: Tensor, kept: Tensor, row_weight: Tensor, reduction: int, z_loss: float, dtype: torch.dtype
) -> Triple:
    if z_loss:
        loss = loss + z_loss * lse.square()
    loss, lse = torch.where(kept, loss, 0), torch.where(kept, lse, 0)
    total = row_weight.sum() if reduction == MEAN else lse.new_empty(0)
    if reduction != NONE:
        loss = loss.sum()
    if reduction == MEAN:  # NaN of no rows is a constant: 0 / 0 would have derivatives that are NaN
        some = kept.any()
        loss = torch.where(some, loss / torch.where(some, total, 1), torch.nan)
    return loss.to(dtype).contiguous(), lse.contiguous(), total


def split_rows(call: Call, class_dim: int, of_rows: Container[str], outputs: Callable[[Dims, Dims], Any]) -> Split:
    """Rows may be split. ``outputs`` of the names of the target's dimensions and of the logits'."""
    rows = tuple(range(len(call.shapes["target"])))
    logits = (*rows[:class_dim], None, *rows[class_dim:])
    inputs: dict[str, Dims] = {name: rows for name in call.shapes if name in of_rows}
    return Split(inputs | {"input": logits}, outputs(rows, logits), apart(rows))


def statistics_dtype(input: Tensor) -> torch.dtype:
    return torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype


def check(op: str, input: Tensor, target: Tensor, dim: int) -> None:
    """What the C++ host checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    check_input(op, input)
    if _tracing():  # sizes are tensors, and a question about one is a warning
        check_target_dtype(op, target)
        return
    shape = list(input.shape)
    del shape[dim]
    if list(target.shape) != shape:
        raise RuntimeError(f"[{op}] target must have shape {shape}, got {list(target.shape)}")
    if not input.shape[dim] and target.numel():
        raise RuntimeError(f"[{op}] input must have a class at least, got shape {list(input.shape)}")
    check_target_dtype(op, target)


def check_input(op: str, input: Tensor) -> None:
    if not input.is_floating_point():
        raise RuntimeError(f"[{op}] input must be floating point, got {input.dtype}")
    if not input.dim():
        raise RuntimeError(f"[{op}] input must have a dimension of classes, got shape []")


def check_devices(op: str, input: Tensor, **others: Tensor | None) -> None:
    for name, x in others.items():
        if x is not None and x.device != input.device:
            raise RuntimeError(f"[{op}] {name} must be on input's device {input.device}, got {x.device}")


def check_target_dtype(op: str, target: Tensor) -> None:
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"[{op}] target must have dtype torch.int64 or torch.uint8, got {target.dtype}")


def check_weights(op: str, weight: Tensor, classes: int, dtype: torch.dtype) -> None:
    """``dtype``: the logits'."""
    if list(weight.shape) != [classes]:
        raise RuntimeError(f"[{op}] weight must have shape {[classes]}, got {list(weight.shape)}")
    if weight.dtype not in (dtype, torch.float32):
        or_single = "" if dtype == torch.float32 else " or torch.float32"
        raise RuntimeError(f"[{op}] weight must have input's dtype {dtype}{or_single}, got {weight.dtype}")


def check_options(op: str, ignore_index: Any, softcap: Any, **numbers: Any) -> int:
    """``ignore_index`` as an integer; the other options have their types and ranges."""
    check_numbers(op, softcap=softcap, **numbers)
    for name, value in numbers.items():
        if value is None:
            raise type_error(op, name, "a number", value)
    if softcap is not None and not 0 < softcap < float("inf"):
        raise RuntimeError(f"[{op}] softcap must be finite and greater than 0, got {softcap}")
    if type(ignore_index) is int:
        return ignore_index
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, (Integral, torch.SymInt)):
        raise type_error(op, "ignore_index", "an integer", ignore_index)
    return int(ignore_index)


def without_defaults(options: Sequence[Any], defaults: Sequence[Any]) -> tuple[Any, ...]:
    """``options`` up to the last that is none of the schema's: each argument of a raw op takes 0.1 to 0.2 us."""
    count = len(options)
    while count and not isinstance(options[count - 1], Tensor) and options[count - 1] == defaults[count - 1]:
        count -= 1
    return tuple(options[:count])
