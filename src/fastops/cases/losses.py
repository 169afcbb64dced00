"""Inputs of cross_entropy and log_prob, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import LAYOUTS, SIZES, Layout, Make, channels_last, row_slice, stepped, transposed

IGNORED = -100


def cross_entropy(input: Tensor, target: Tensor) -> Tensor:
    """The mean over the rows that are not ignored, classes in the second dimension."""
    log_p, kept = _log_p(input.movedim(1 if input.dim() > 1 else 0, -1), target)
    return -log_p.sum() / kept.sum()


def log_prob(input: Tensor, target: Tensor) -> Tensor:
    return _log_p(input, target)[0]


def _log_p(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    kept = target != IGNORED
    x = torch.where(kept.unsqueeze(-1), x, 0)
    # What is taken out has no derivative: autograd would send the largest the rounding of all others'.
    x = x - x.amax(-1, keepdim=True).detach() if x.numel() else x
    of_target = x.gather(-1, torch.where(kept, target, 0).unsqueeze(-1)).squeeze(-1)
    return torch.where(kept, of_target - x.exp().sum(-1).log(), 0), kept


def torch_log_prob(input: Tensor, target: Tensor) -> Tensor:
    """What one writes of torch's ops."""
    wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
    return -F.cross_entropy(wide.reshape(-1, wide.shape[-1]), target.reshape(-1), reduction="none").view(target.shape)


def samples(dim: int) -> Iterator[Sample]:
    """With the classes in this dimension, 1 or -1, of the tensors of more than one."""

    def sample(
        name: str,
        *shape: int,
        scale: float = 2.0,
        shift: float = 0.0,
        ignored: int = 0,
        layout: Layout | None = None,
        change: Callable[[Tensor, Tensor], None] | None = None,
        last: bool = False,
        **flags: bool,
    ) -> Sample:
        """Each ``ignored``-th row is; ``last``: the layout is of a tensor that has the classes last."""

        def build(make: Make) -> tuple[Any, ...]:
            at = 0 if len(shape) < 2 else dim % len(shape)
            target = make.integers(*shape[:at], *shape[at + 1 :], below=shape[at])
            if ignored:
                target.view(-1)[::ignored] = IGNORED
            x = make(*shape, scale=scale, shift=shift)
            if change:
                change(x.movedim(at, -1), target)
            if layout:
                x = layout(x.movedim(at, -1)).movedim(-1, at) if last else layout(x)
            return x, target

        return Sample(name, build, **flags)

    for n in SIZES[1:]:
        yield sample(f"n{n}", 5, n)
    for n in (2, 192, 769, 1000, 4096, 5504):
        yield sample(f"n{n}", 3, n)
    yield sample("n32000", 5, 32000, ignored=3, large=True)
    yield sample("n50257", 3, 50257, large=True)
    yield sample("n131072", 2, 131072, large=True)
    yield sample("small", 4, 5, small=True)
    yield sample("small_ignored", 4, 3, ignored=2, small=True)
    yield sample("small_vector", 4, small=True)
    yield sample("small3d", 2, 3, 2, small=True)
    yield sample("vector", 33)
    yield sample("one_row", 1, 127)
    yield sample("no_rows", 0, 16)
    yield sample("ignored", 37, 129, ignored=3)
    yield sample("ignored_all", 5, 17, ignored=1)
    yield sample("ignored_nan", 37, 129, ignored=3, change=_spoil, unlike_torch=True)
    yield sample("ignored3d", 5, 33, 17, ignored=4)
    yield sample("middle4d", 2, 67, 3, 5)
    yield sample("rows4099", 4099, 61, ignored=5, large=True)
    yield sample("close", 7, 257, scale=1e-4)
    yield sample("equal", 7, 257, scale=0.0, shift=3.0)
    yield sample("far", 7, 257, scale=10.0)
    yield sample("shifted", 7, 257, shift=-20.0)
    yield sample("minus_infinity", 7, 257, change=_mask)
    for layout in LAYOUTS:
        yield sample(layout.__name__, 37, 67, layout=layout)
    yield sample("rows_of_wider", 5, 67, 9, layout=row_slice, last=True)
    yield sample("transposed3d", 3, 17, 129, layout=transposed)  # [B, V, S] of [B, S, V]
    yield sample("stepped3d", 5, 7, 9, layout=stepped)
    yield sample("channels_last", 2, 5, 3, 7, layout=channels_last)


def _spoil(rows: Tensor, target: Tensor) -> None:
    """What ignored rows hold is nothing to anyone."""
    kept = target != IGNORED
    rows[~kept] = torch.nan
    rows[0, ::3] = torch.inf


def _mask(rows: Tensor, target: Tensor) -> None:
    """Every third class is -inf, but for the targets."""
    values = rows.gather(-1, target.unsqueeze(-1))
    rows[..., ::3] = -torch.inf
    rows.scatter_(-1, target.unsqueeze(-1), values)


def cross_entropy_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    """Each reduction, dtype and option, classes last, in the middle and the first of more."""
    wide = make.parameter_dtype
    return [
        *_cross_entropy(make, (rows, n)),
        *_cross_entropy(make, (rows, n), reduction=0),
        *_cross_entropy(make, (rows, n), weight=make.dtype, reduction=2, smoothing=0.1),
        *_cross_entropy(make, (rows, n), weight=wide, smoothing=0.1, scale=0.5, softcap=3.0, z_loss=1e-2, lse=True),
        *_cross_entropy(make, (rows, n), reduction=0, z_loss=1e-2, dtype=wide, lse=True),
        *_cross_entropy(make, (rows, n, 3), weight=make.dtype, reduction=0, scale=-1.5),
        *_cross_entropy(make, (rows, n, 2), smoothing=0.2, dtype=wide),
    ]


def _cross_entropy(
    make: Make,
    shape: tuple[int, ...],
    *,
    weight: torch.dtype | None = None,
    reduction: int = 1,
    smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    lse: bool = False,
) -> list[RawCall]:
    """A forward, and the backward of the statistics that it has in plain PyTorch; ``lse``: it has a gradient too."""
    n, of_rows = shape[1], (shape[0], *shape[2:])
    target = _targets(make, of_rows, n)
    w = None if weight is None else make(n, dtype=weight).abs_().add_(0.1)
    options = (w, reduction, IGNORED, smoothing, scale, softcap, z_loss)
    each = reduction == 0
    forward = RawCall(
        "cross_entropy",
        (make(*shape, scale=2.0), target, *options, dtype),
        shared=(2,),
        row_outputs=(0, 1) if each else (1,),
        coarse=(0, 1, 2),
    )
    loss, log_sum, total = forward.reference()
    grad = make(*loss.shape, dtype=loss.dtype)
    grad_lse = make(*of_rows, dtype=log_sum.dtype) if lse else None
    backward = RawCall(
        "cross_entropy_backward",
        (grad, grad_lse, forward.args[0], target, log_sum, total, *options),
        shared=(5, 6) if each else (0, 5, 6),
    )
    return [forward, backward]


def log_prob_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    return [
        *_log_prob(make, (rows, n)),
        *_log_prob(make, (rows, n), entropy=True),
        *_log_prob(make, (rows, n), scale=-0.5, softcap=3.0, entropy=True),
        *_log_prob(make, (rows, 3, n), scale=2.0),
    ]


def _log_prob(
    make: Make, shape: tuple[int, ...], *, scale: float = 1.0, softcap: float | None = None, entropy: bool = False
) -> list[RawCall]:
    x, target = make(*shape, scale=2.0), _targets(make, shape[:-1], shape[-1])
    options = (IGNORED, scale, softcap)
    forward = RawCall(
        "log_prob",
        (x, target, *options, entropy),
        row_outputs=(0, 1, 2) if entropy else (0, 2),
        coarse=(0, 1, 2),
    )
    found, spread, log_sum = forward.reference()
    grads = make(*found.shape, dtype=found.dtype), make(*found.shape, dtype=found.dtype) if entropy else None
    backward = RawCall(
        "log_prob_backward", (*grads, x, target, log_sum, spread, *options), shared=() if entropy else (5,)
    )
    return [forward, backward]


def _targets(make: Make, shape: tuple[int, ...], classes: int) -> Tensor:
    """Of which the second row's is ignored."""
    target = make.integers(*shape, below=classes)
    target[1:2] = IGNORED
    return target


def problem(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return make(rows, n, scale=2.0), make.integers(rows, below=n)


def gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Logits and targets."""
    return args[0], args[1]
