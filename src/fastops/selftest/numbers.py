"""Elementwise kernels on every number that there is: all of a half type, every exponent of the wider ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..cases import RawCall
from .accuracy import ulps, wide_copies
from .checks import Check, Outcome, is_statistic
from .target import Target

ROW = 64
# Of a wide type: bits of the exponent and of the fraction, as an integer of which width.
_FORMATS = {torch.float32: (8, 23, torch.int32), torch.float64: (11, 52, torch.int64)}
_FRACTIONS = _ALIKE = 16
_LARGEST = 2.0**62
ONE_ROUNDING_AT_MOST = 0.51  # ulps


def every_number(dtype: torch.dtype) -> Tensor:
    """[*, 64]: of half types all 65,536; of wider ones both signs of each exponent, 16 fractions of each.

    Among the fractions are none, the first, the last, and those halfway between neighbours of the half types or whose
    squares are: powers of two, denormal numbers, infinities and payloads of NaN are there, and what is rounded to even.
    """
    if dtype not in _FORMATS:
        return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype).view(-1, ROW)
    exponent_bits, fraction_bits, integer = _FORMATS[dtype]
    ties = [k << (fraction_bits - 8) for k in (1, 3)] + [k << (fraction_bits - 11) for k in (1, 3)]
    squares = [k << (fraction_bits // 2) for k in (1, 3, 5)]
    chosen = [0, 1, (1 << fraction_bits) - 1, 1 << (fraction_bits - 1), *ties, *squares]
    others = torch.randint(1 << fraction_bits, (_FRACTIONS - len(chosen),), generator=torch.Generator().manual_seed(0))
    fractions = torch.cat([torch.tensor(chosen), others])
    high = torch.arange(-(1 << exponent_bits), 1 << exponent_bits)  # with the sign
    return ((high << fraction_bits)[:, None] | fractions).to(integer).view(dtype).view(-1, ROW)


def numbers(t: Target) -> Iterator[Outcome]:
    """Each tensor of an elementwise raw op holds every number in its turn, beside random ones in the others."""
    if not any(_is_elementwise(t, call) for call in t.raw(3, 5)):
        return
    every = every_number(t.dtype)
    # Beyond lies what overflows in float32 between a gradient's factors, as in 2·x·g.
    largest = min(_LARGEST, torch.finfo(t.dtype).max)
    every = torch.where(every.isfinite(), every.clamp(-largest, largest), every).to(t.path.device)
    bound = t.bound()
    worst, worst_at = (0.0, torch.inf), ""
    ties, to_odd = 0, set()
    for call in t.case.raw(t.make(), every.shape[0], ROW):
        if not _is_elementwise(t, call):
            continue
        for k, x in enumerate(call.args):
            if not isinstance(x, Tensor) or x.dtype != t.dtype or x.numel() % every.numel() or is_statistic(call, k):
                continue
            of_every = call.with_tensors({k: every.repeat(1, x.numel() // every.numel())})
            for j, out, truth in _results(of_every):
                # Of numbers of one size: the largest of all would excuse the errors of all others.
                error = ulps(out, truth, dtype=t.dtype if j in call.coarse else None, among=_ALIKE)
                limit = _limit(t, call)
                # Some limits are 0.
                if not error - limit <= worst[0] - worst[1]:
                    worst, worst_at = (error, limit), f"output {j} of {call.op} with every number as argument {k}"
                if bound.kernel <= ONE_ROUNDING_AT_MOST and out.dtype == t.dtype:
                    halfway = _halfway(truth, t.dtype)
                    ties += int(halfway.sum())
                    if (out.cpu() != truth.to(t.dtype))[halfway].any():
                        to_odd.add(call.op)
    yield Outcome("every number", worst[0] <= worst[1], *worst, worst_at)
    if ties:
        yield Outcome("ties to even", not to_odd, detail=", ".join(sorted(to_odd)) or f"{ties} ties")


def _is_elementwise(t: Target, call: RawCall) -> bool:
    return t.case.elementwise or call.elementwise


def _limit(t: Target, call: RawCall) -> float:
    """Far from 0 a gradient may be off by more than a result is. What is so in float64 is the truth's own."""
    bound = t.bound()
    forward = t.path.kind == "cpu" and t.dtype == torch.float32 and not call.op.endswith("_backward")
    return min(bound.anywhere(t.path.device), 2 * bound.forward + 1 if forward else torch.inf)


def _results(call: RawCall) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Those of each number, and masks. A sum over rows, of which each has every number, is left out."""
    truth = call.reference.with_args(wide_copies(call.args))()
    for j, (out, expected) in enumerate(zip(call(), truth, strict=True)):
        if not out.is_floating_point() or (j in call.row_outputs and out.dim() > 1):
            yield j, out, expected


def _halfway(truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Where the truth lies exactly between two normal numbers of the dtype."""
    limits = torch.finfo(dtype)
    size = truth.abs()
    steps = torch.frexp(truth).mantissa.abs() * (2 / limits.eps)
    return (steps.frac() == 0.5) & (size >= limits.tiny) & (size <= limits.max)


CHECKS: tuple[Check, ...] = (numbers,)
