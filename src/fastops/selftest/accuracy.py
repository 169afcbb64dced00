"""How far a result is from the truth, in ulps, and the truth itself.

    ulps = abs(out - truth) / (eps · scale)

eps is the step of the result's dtype at 1: 2^-10 for float16, 2^-7 for bfloat16, 2^-23 for float32, 2^-52 for float64.
Where every result keeps its own digits (``Case.relative``), scale is the truth's own magnitude. Elsewhere terms cancel,
so that no computation in the dtype could: scale is then at least the root mean square of the truth over the tensor.
Below the smallest normal number the step no longer shrinks, and scale stays there. Correct rounding has half an ulp.

An output of a finer dtype than the first argument's is counted in that one's ulps, unless it has digits of its own
(``Case.own_digits``). So is a gradient where an intermediate is rounded to the input's dtype (``Case.rounds_between``,
the product in ``linear``).

What a GEMM library sums of n products in float32 or float64 (``Case.products``) is off by some √n roundings, more in
one library or on one processor than on another: from 256 products on its ulps are √(n / 256) times as large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, Make
from .together import on_cpu


def ulps(
    out: Tensor,
    truth: Tensor,
    *,
    relative: bool = False,
    dtype: torch.dtype | None = None,
    among: int | None = None,
) -> float:
    """The largest error of a tensor. NaN where the truth has none, or the reverse, is infinitely wrong.

    ``among``: the root mean square is that of so many neighbours, not the whole tensor's.
    """
    return float(largest_error(out, truth, relative=relative, dtype=dtype, among=among))


def largest_error(
    out: Tensor,
    truth: Tensor,
    *,
    relative: bool = False,
    dtype: torch.dtype | None = None,
    among: int | None = None,
) -> Tensor:
    """:func:`ulps`, on the truth's device: what asks for it waits."""
    if out.shape != truth.shape:
        raise ValueError(f"result has shape {list(out.shape)}, must have {list(truth.shape)}")
    if out.numel() == 0:
        return torch.zeros((), dtype=torch.float64)
    if not out.is_floating_point():
        return torch.where((out.to(truth.device) == truth).all(), 0.0, torch.inf)
    limits = torch.finfo(dtype or out.dtype)
    truth = truth.double().contiguous()
    rounds_to, out, scale = out.dtype, out.detach().to(truth.device).double().contiguous(), truth.abs()
    # On the CPU nothing is waited for.
    if truth.is_cpu and among is None and _USUAL < scale.max() < min(torch.finfo(rounds_to).max, 1 / _USUAL):
        return _of_usual_numbers(out, truth, scale, relative, limits)
    rounded = truth.to(rounds_to).double()
    if not relative:
        is_finite = scale.isfinite()
        finite = torch.where(is_finite, scale, 0).view(-1, among or scale.numel())
        largest = finite.amax(-1, keepdim=True).clamp_min(limits.tiny)  # in units of it: its square may not be finite
        count = is_finite.view_as(finite).sum(-1, keepdim=True).clamp_min(1)
        root = largest * ((finite / largest).square().sum(-1, keepdim=True) / count).sqrt()
        scale = torch.maximum(scale.view_as(finite), root).view_as(scale)
    error = (out - truth).abs() / (limits.eps * scale.clamp_min(limits.tiny))
    same = (out == rounded) | (out.isnan() & rounded.isnan())
    error = torch.where(same & ~rounded.isfinite(), 0, error)
    return error.nan_to_num(nan=torch.inf, posinf=torch.inf).max()


_USUAL = 1e-100  # whose square, and that of its inverse, float64 holds


def _of_usual_numbers(out: Tensor, truth: Tensor, scale: Tensor, relative: bool, limits: torch.finfo) -> Tensor:
    """Likewise, where the truth and its squares are finite: in fewer passes. Writes ``scale``."""
    root = 0.0 if relative else float(torch.linalg.vector_norm(scale)) / math.sqrt(scale.numel())
    error = (out - truth).abs_().div_(scale.clamp_min_(max(root, limits.tiny)))
    return (error.max() / limits.eps).nan_to_num(nan=torch.inf, posinf=torch.inf)


@dataclass(frozen=True)
class Evaluation:
    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor, ...]  # one for each floating-point or complex tensor argument

    def on_cpu(self) -> Evaluation:
        both, count = on_cpu(self.outputs + self.gradients), len(self.outputs)
        return Evaluation(both[:count], both[count:])


def tensors_of(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if isinstance(a, Tensor)]


def is_learnable(x: Any) -> bool:
    """Whether an argument is differentiated: integers, such as the targets of a loss, are not."""
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def learnable(args: tuple[Any, ...]) -> list[Tensor]:
    return [a for a in args if is_learnable(a)]


def evaluate(
    function: Callable[..., Any], args: tuple[Any, ...], grads: tuple[Tensor, ...] | None = None
) -> Evaluation:
    """Outputs and gradients; without ``grads`` the incoming gradients are random numbers, the same ones each time."""
    args = tuple(a.detach().requires_grad_() if is_learnable(a) else a for a in args)
    out = function(*args)
    outputs = out if isinstance(out, tuple) else (out,)
    if grads is None:
        grads = incoming_gradients(outputs)
    gradients = torch.autograd.grad(outputs, learnable(args), grads)
    return Evaluation(tuple(o.detach() for o in outputs), gradients)


def incoming_gradients(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    drawn = (_drawn(o.dtype, o.shape, 1000 + k) for k, o in enumerate(outputs))
    return tuple(g.to(o.device, non_blocking=True, copy=True) for g, o in zip(drawn, outputs, strict=True))


@functools.lru_cache(maxsize=2)  # two outputs' at most: their truth wants the same ones
def _drawn(dtype: torch.dtype, shape: torch.Size, seed: int) -> Tensor:
    return Make("cpu", dtype, seed)(*shape)


def wide_copies(args: tuple[Any, ...], where_they_are: bool = False) -> tuple[Any, ...]:
    """On the CPU, or where they are, what is floating point in float64, a dtype that is asked for too."""
    tensors = tensors_of(args)
    copies = iter([x.detach() for x in tensors] if where_they_are else on_cpu(tensors))

    def wide(a: Any) -> Any:
        if isinstance(a, torch.dtype):
            return torch.float64 if a.is_floating_point else a
        if not isinstance(a, Tensor):
            return a
        return next(copies).double() if a.is_floating_point() else next(copies)

    return tuple(map(wide, args))


def in_float64(function: Callable[..., Any], args: tuple[Any, ...], grads: Iterable[Tensor]) -> Evaluation:
    """On the CPU, of wide copies of the arguments and of the gradients that come in."""
    wide = wide_copies((*args, *grads))
    return evaluate(function, wide[: len(args)], wide[len(args) :])


def truth_of(case: Case, args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> Evaluation:
    """The formula on float64 copies of the arguments, and of the gradients that come in for these outputs."""
    return in_float64(case.plain, args, incoming_gradients(outputs))


def errors(case: Case, args: tuple[Any, ...], result: Evaluation, truth: Evaluation) -> Iterator[tuple[str, float]]:
    """("forward" or "gradient", ulps) for each output and each gradient."""
    result = result.on_cpu()
    for out, expected in zip(result.outputs, truth.outputs, strict=True):
        yield "forward", _output_error(case, args, out, expected)
    for k, (gradient, expected) in enumerate(zip(result.gradients, truth.gradients, strict=True)):
        yield "gradient", gradient_error(case, args, k, gradient, expected, result.outputs[0].numel())


def _output_error(case: Case, args: tuple[Any, ...], out: Tensor, expected: Tensor) -> float:
    """In ulps of the coarser of its dtype and the first argument's.

    The error of a result with digits of its own is scaled, so that its dtype's bound counts as the coarser one's.
    """
    own, coarse = out.dtype, _coarser(out.dtype, args)
    if own == coarse or not case.own_digits:
        return ulps(out, expected, relative=case.relative, dtype=coarse)
    of_bounds = case.bounds[coarse].forward / case.bounds[own].forward
    return ulps(out, expected, relative=case.relative, dtype=own) * of_bounds


def _coarser(dtype: torch.dtype, args: tuple[Any, ...]) -> torch.dtype:
    return max(dtype, args[0].dtype, key=lambda dtype: torch.finfo(dtype).eps)


def counted_in(case: Case, args: tuple[Any, ...], gradient: Tensor, coarse: bool = False) -> torch.dtype:
    """The dtype in whose steps a gradient's error is counted."""
    return _coarser(gradient.dtype, args) if case.rounds_between or coarse else gradient.dtype


def gradient_error(
    case: Case,
    args: tuple[Any, ...],
    k: int,
    gradient: Tensor,
    expected: Tensor,
    numel: int,
    coarse: bool = False,
) -> float:
    """In ulps, of the k-th tensor that is differentiated; ``numel`` is the first output's."""
    dtype = counted_in(case, args, gradient, coarse)
    error = ulps(gradient, expected, relative=case.relative_gradient, dtype=dtype)
    if k in case.products and gradient.numel() and gradient.dtype in (torch.float32, torch.float64):
        error /= max(1.0, math.sqrt(numel * gradient.shape[-1] / gradient.numel() / 256))
    return error


def near(
    found: Sequence[Tensor | None], expected: Sequence[Tensor | None], dtype: torch.dtype, least: float = 0.0
) -> bool:
    """But for a few roundings of the coarsest dtype among them and ``dtype``, in which torch may round in between.

    ``least``: of the largest number, where it is more.
    """
    pairs = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None and b is not None]
    most = max(least, _ROUNDINGS * max(torch.finfo(kind).eps for kind in (dtype, *(a.dtype for a, _ in pairs))))
    for a, b in zip(*map(on_cpu, zip(*pairs, strict=True)), strict=True):
        size = float(b.abs().max()) if b.numel() else 0.0
        if not torch.allclose(a.double(), b.double(), rtol=most, atol=most * size):
            return False
    return True


_ROUNDINGS = 16
