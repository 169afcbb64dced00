"""Inputs of cross_entropy and log_prob, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import (
    HALVES,
    LAYOUTS,
    LONG_SLICES,
    SIZES,
    Layout,
    Make,
    channels_last,
    expanded,
    row_slice,
    shortened,
    stepped,
    transposed,
)
from .linear import plain as linear
from .rows import ENDS_IN_BOTH_HALVES, one_far_above, pieces

IGNORED = -100


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> Any:
    """Classes in the second dimension; the mean is over the weights of the rows that are not ignored.

    A target of probabilities has no such rows, and the mean is over their number.
    """
    if target.is_floating_point():
        dim = min(1, target.dim() - 1)
        q = target.movedim(dim, -1) * (1 - label_smoothing) + label_smoothing / target.shape[dim]
        log_p, lse, *_ = _log_p(input.movedim(dim, -1), torch.zeros_like(q[..., 0]), scale=scale, softcap=softcap)
        loss = -(q * log_p if weight is None else q * log_p * weight).sum(-1) + z_loss * lse**2
        if reduction != "none":
            loss = loss.sum() if reduction == "sum" else loss.mean()
        return (loss, lse) if return_lse else loss
    log_p, lse, kept, at = _log_p(input.movedim(min(1, input.dim() - 1), -1), target, ignore_index, scale, softcap)
    w = torch.ones_like(log_p[..., :1].expand(log_p.shape)) if weight is None else weight.expand(log_p.shape)
    w_y = w.gather(-1, at).squeeze(-1)
    loss = (label_smoothing - 1) * w_y * log_p.gather(-1, at).squeeze(-1) + z_loss * lse**2
    if label_smoothing:
        loss = loss - label_smoothing / log_p.shape[-1] * (w * log_p).sum(-1)
    loss = torch.where(kept, loss, 0)
    if reduction != "none":
        total = torch.where(kept, w_y, 0).sum()
        # NaN of no rows does not depend on any logit.
        mean = torch.where(kept.any(), loss.sum() / torch.where(kept.any(), total, 1), torch.nan)
        loss = loss.sum() if reduction == "sum" else mean
    return (loss, torch.where(kept, lse, 0)) if return_lse else loss


def log_prob(
    input: Tensor,
    target: Tensor,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = IGNORED,
    entropy: bool = False,
) -> Any:
    log_p, _, kept, at = _log_p(input, target, ignore_index, scale, softcap)
    found = torch.where(kept, log_p.gather(-1, at).squeeze(-1), 0)
    if not entropy:
        return found
    p = log_p.exp()
    return found, torch.where(kept, -(p * torch.where(p > 0, log_p, 0)).sum(-1), 0)


def _log_p(
    x: Tensor, target: Tensor, ignore_index: int = IGNORED, scale: float = 1.0, softcap: float | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each class, lse, which rows are not ignored, and where their targets are."""
    target = target.long()
    kept = target != ignore_index
    x = torch.where(kept.unsqueeze(-1), x, 0) * scale
    x = x if softcap is None else softcap * torch.tanh(x / softcap)
    # What is taken out has no derivative: autograd would send the largest the rounding of all others'.
    largest = x.amax(-1, keepdim=True).detach() if x.numel() else x.sum(-1, keepdim=True).detach()
    x = x - largest
    log_sum = x.exp().sum(-1, keepdim=True).log()
    return x - log_sum, (largest + log_sum).squeeze(-1), kept, torch.where(kept, target, 0).unsqueeze(-1)


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
    yield sample("minus_infinity_but_for_a_piece", 3, 5504, change=_pieces)
    for n in ENDS_IN_BOTH_HALVES:
        yield sample(f"one_of_{n}_far_above", n, n, change=_one_far_above)
    yield sample("sure", 7, 257, change=_sure)
    for layout in LAYOUTS:
        yield sample(layout.__name__, 37, 67, layout=layout)
    yield sample("rows_of_wider", 5, 67, 9, layout=row_slice, last=True)
    yield sample("slices_of_longer", 37, 61, 129, layout=shortened, last=True)
    yield sample(LONG_SLICES, 2, *((16411, 2) if dim == 1 else (2, 16411)), layout=shortened, last=True)
    yield sample("transposed3d", 3, 17, 129, layout=transposed)  # [B, V, S] of [B, S, V]
    yield sample("vectors3d", 3, 5, 64)
    yield sample("stepped3d", 5, 7, 9, layout=stepped)
    yield sample("channels_last", 2, 5, 3, 7, layout=channels_last)


def _spoil(rows: Tensor, target: Tensor) -> None:
    """What ignored rows hold is nothing to anyone."""
    kept = target != IGNORED
    rows[~kept] = torch.nan
    rows[0, ::3] = torch.inf


def _mask(rows: Tensor, target: Tensor) -> None:
    """Every third class is -inf, but for the targets."""
    _spare(rows, target, lambda rows: rows[..., ::3].fill_(-torch.inf))


def _pieces(rows: Tensor, target: Tensor) -> None:
    _spare(rows, target, pieces)


def _spare(rows: Tensor, target: Tensor, change: Callable[[Tensor], Any]) -> None:
    values = rows.gather(-1, target.unsqueeze(-1))
    change(rows)
    rows.scatter_(-1, target.unsqueeze(-1), values)


def _one_far_above(rows: Tensor, target: Tensor) -> None:
    one_far_above(rows)


def _sure(rows: Tensor, target: Tensor) -> None:
    """All gradients are small, the target's what the others leave of 1; float32 has digits for half types' alone."""
    rows.scatter_add_(-1, target.unsqueeze(-1), torch.full_like(rows[..., :1], 14.0 if rows.dtype in HALVES else 1.0))


def cross_entropy_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    """Each reduction, dtype and option, classes last, in the middle and the first of more."""
    wide = make.parameter_dtype
    return [
        *_cross_entropy(make, (rows, n)),
        *_cross_entropy(make, (rows, n), reduction=0, ignored=n + 5),  # behind a row's end
        # So much that the order in which weights are added up shows.
        *_cross_entropy(make, (rows, n), weight=make.dtype, reduction=2, smoothing=0.9),
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
    ignored: int = IGNORED,
) -> list[RawCall]:
    """A forward, and the backward of the statistics that it has in plain PyTorch; ``lse``: it has a gradient too."""
    n, of_rows = shape[1], (shape[0], *shape[2:])
    target = _targets(make, of_rows, n, ignored)
    w = None if weight is None else make(n, dtype=weight).abs_().add_(0.1)
    options = (w, reduction, ignored, smoothing, scale, softcap, z_loss)
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
        *_log_prob(make, (rows, n), entropy=True, ignored=1 << 40),
        *_log_prob(make, (rows, n), scale=-0.5, softcap=3.0, entropy=True),
        *_log_prob(make, (rows, 3, n), scale=1.25, entropy=True),
    ]


def _log_prob(
    make: Make,
    shape: tuple[int, ...],
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
    ignored: int = IGNORED,
) -> list[RawCall]:
    x, target = make(*shape, scale=2.0), _targets(make, shape[:-1], shape[-1], ignored)
    options = (ignored, scale, softcap)
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


def _targets(make: Make, shape: tuple[int, ...], classes: int, ignored: int = IGNORED) -> Tensor:
    """Of which the second row's is ignored."""
    target = make.integers(*shape, below=classes)
    target[1:2] = ignored
    return target


def problem(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return make(rows, n, scale=2.0), make.integers(rows, below=n)


def gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Logits and targets."""
    return args[0], args[1]


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None = None, **options: Any
) -> Any:
    outputs, dim = linear_weight.shape[:-1], input.dim() - 1
    bias = None if linear_bias is None else linear_bias.flatten()
    logits = linear(input, linear_weight.flatten(0, -2), bias).unflatten(-1, outputs)
    target = target.movedim(dim, min(1, dim)) if target.is_floating_point() else target
    return cross_entropy(logits.movedim(dim, min(1, dim)), target, **_of_loss(options))


def linear_log_prob(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None = None, **options: Any
) -> Any:
    return log_prob(linear(input, linear_weight, linear_bias), target, **_of_loss(options))


def _of_loss(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "save" and value is not None}


def torch_linear_cross_entropy(input: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(input, weight).reshape(-1, weight.shape[0]), target.reshape(-1))


def torch_linear_log_prob(input: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return torch_log_prob(F.linear(input, weight), target)


def linear_samples() -> Iterator[Sample]:
    """Of hidden states, a weight and targets."""

    def sample(
        name: str,
        *leading: int,
        k: int,
        n: int,
        ignored: int = 0,
        x: Layout | None = None,
        w: Layout | None = None,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            target = make.integers(*leading, below=n)
            if ignored:
                target.view(-1)[::ignored] = IGNORED
            return make(*leading, k, layout=x), make(n, k, scale=max(k, 1) ** -0.5, layout=w), target

        return Sample(name, build, **flags)

    yield sample("small", 3, k=4, n=5, small=True)
    yield sample("small_ignored", 4, k=2, n=3, ignored=2, small=True)
    yield sample("one_row", 1, k=7, n=129)
    yield sample("vector", k=7, n=33)
    yield sample("one_class", 5, k=3, n=1)
    yield sample("3d", 2, 5, k=12, n=301, ignored=4)
    yield sample("odd", 37, k=13, n=1001, ignored=3)
    yield sample("wide", 37, k=64, n=5504)
    yield sample("no_rows", 0, k=5, n=16)
    yield sample("ignored_all", 5, k=6, n=17, ignored=1)
    yield sample("n50257", 5, k=8, n=50257, large=True)
    yield sample("rows4099", 4099, k=8, n=61, ignored=5, large=True)
    for layout in LAYOUTS:
        yield sample(f"{layout.__name__}_input", 37, k=31, n=67, x=layout)
        if layout is not expanded:  # whose gradients are all 0, but for roundings
            yield sample(f"{layout.__name__}_weight", 37, k=31, n=67, w=layout)


def linear_problem(make: Make, rows: int, in_features: int, classes: int | None = None) -> tuple[Any, ...]:
    n = in_features if classes is None else classes
    return make(rows, in_features), make(n, in_features, scale=in_features**-0.5), make.integers(rows, below=n)


def rounded_once(function: Callable[..., Tensor], make: Make) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Losses of many rows, and the gradients of their mean, with the logits kept and multiplied again."""
    args = linear_problem(make, 8192, 32, 512)
    x, w, target = (a.detach().cpu() for a in args)
    wide = x.double().requires_grad_(), w.double().requires_grad_()
    truth = (-linear_log_prob(*wide, target)).detach()
    gradients = torch.autograd.grad(linear_cross_entropy(*wide, target), wide)
    for save in ("logits", "none"):
        yield "loss", function(*args, reduction="none", save=save), truth
        learn = args[0].detach().requires_grad_(), args[1].detach().requires_grad_()
        found = torch.autograd.grad(function(*learn, args[2], save=save), learn)
        yield from zip(("dX", "dW"), found, gradients, strict=True)


_PARTIAL_OPTIONS = ((0.0, 1.0, None, False), (0.1, -1.5, None, False), (0.0, 0.5, 3.0, True), (0.0, 1.25, None, True))


def partial_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    """The ops of parts of the classes, of which there are two: their numbers, one part of both, and their results."""
    half = n // 2
    x, target = make(rows, n, scale=2.0), _targets(make, (rows,), n)
    calls = []
    for smoothing, scale, softcap, entropy in _PARTIAL_OPTIONS:
        weight = make(n, dtype=make.dtype).abs_().add_(0.1) if smoothing else None
        options = (IGNORED, smoothing, scale, softcap)
        parts = [
            RawCall("likelihood_partial", (part, target, 1, begin, n, weight, *options, entropy), (5,), coarse=(0,))
            for begin, part in ((0, x[:, :half]), (half, x[:, half:]))
        ]
        numbers = torch.stack([part.reference()[0] for part in parts])
        calls += [*parts, _of_parts("likelihood_join", numbers, None, scale, softcap, entropy)]
        if entropy:
            calls.append(_of_parts("log_prob_merge", numbers, target, n, IGNORED, scale, softcap, True))
        else:
            calls.append(_of_parts("cross_entropy_merge", numbers, target, n, weight, 0, *options, 0.01, None))
    return calls


def _of_parts(op: str, numbers: Tensor, target: Tensor | None, *options: Any) -> RawCall:
    """Of which rows are the second dimension."""
    results = {"likelihood_join": (0,), "log_prob_merge": (0, 1, 2), "cross_entropy_merge": (0, 1)}[op]

    def args_of(begin: int, end: int) -> tuple[Any, ...]:
        of_rows = () if target is None else (target[begin:end],)
        return (numbers[:, begin:end], *of_rows, *options)

    return RawCall(op, args_of(0, numbers.shape[1]), row_outputs=results, args_of=args_of)
