"""Every rule of a plan runs: rows of which float64 has few, repeated to as many as the rule asks for.

A row's results do not depend on the other rows: each repetition has the bits of the first, which is compared with
float64. A sum over rows, or their mean, is linear in the number of repetitions, of which float64 computes one and two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from .._plan import card_here
from ..cases import Layout, RawCall
from .accuracy import ulps, wide_copies
from .bands import Band, Problem, bands_of
from .checks import Check, Outcome, is_statistic
from .target import Target

REACHED = "rules reached"  # its outcome's detail: how many of how many
FEW = 4  # rows that differ
_FEW_NUMBERS, _MANY, _LARGE = 1 << 12, 1 << 20, 1 << 22
_NAMES = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32", torch.float64: "f64"}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def rules(t: Target) -> Iterator[Outcome]:
    """The ends of each rule's band of lengths and one inside, each of its schedules."""
    bands = _bands(t)
    if not bands:
        return
    limit = t.case.bounds[t.dtype].anywhere
    wrong: dict[str, str] = {}
    reached, worst, worst_at = 0, 0.0, ""
    for problems in bands.values():
        count = 0
        for problem in problems:
            for call in _calls(t, problem):
                count += 1
                what = f"{call.op}, {problem.rows} rows of {problem.n}"
                try:
                    error = _error(call, math.ceil(problem.rows / min(FEW, problem.rows)), problem.layout)
                except _DiffersError:
                    wrong[call.op] = f"{what}: a row differs from its repetition"
                    continue
                if not error <= worst:
                    worst, worst_at = error, what
        reached += count > 0
    yield Outcome(
        "rows of every rule", worst <= limit and not wrong, worst, limit, "; ".join(wrong.values()) or worst_at
    )
    yield Outcome(REACHED, reached == len(bands), detail=f"{reached} of {len(bands)}")


def _bands(t: Target) -> dict[Band, list[Problem]]:
    """A quick run has two dtypes of what is not large; lower CPU levels, of the same source, what is large in one."""
    if t.quick and t.dtype not in (torch.float32, torch.bfloat16):
        return {}
    on_cpu = t.path.kind == "cpu"
    found = bands_of(t.case.name, _NAMES[t.dtype], None if on_cpu else card_here()[1])
    if t.quick or (on_cpu and not t.path.best and t.dtype != torch.bfloat16):
        found = {band: [p for p in problems if p.rows * p.n <= _LARGE] for band, problems in found.items()}
    return {band: problems for band, problems in found.items() if problems}


class _DiffersError(Exception):
    pass


def _calls(t: Target, problem: Problem) -> Iterator[RawCall]:
    """Those of the problem's direction and dtypes; of many numbers one of each op."""
    seen: set[str] = set()
    for call in t.case.raw(t.make(), min(FEW, problem.rows), problem.n):
        fits = call.op.endswith("_backward") == problem.backward and _is_wide(call, t.dtype) == problem.wide
        if call.args_of is not None or problem.rows > call.most_rows or not fits:
            continue
        if problem.rows * problem.n > (_FEW_NUMBERS if t.quick else _MANY) and call.op in seen:
            continue
        seen.add(call.op)
        yield call


def _is_wide(call: RawCall, dtype: torch.dtype) -> bool:
    if dtype not in (torch.float16, torch.bfloat16):
        return False
    given = (x.dtype if isinstance(x, Tensor) else x for k, x in enumerate(call.args) if not is_statistic(call, k))
    return torch.float32 in given


def _error(call: RawCall, times: int, layout: Layout | None) -> float:
    one, two = (of.reference.with_args(wide_copies(of.args, None))() for of in (call, call.repeated(2)))
    worst = 0.0
    many = call.repeated(times)
    if layout:
        of_rows = (isinstance(x, Tensor) and x.dim() > 1 and not is_statistic(call, k) for k, x in enumerate(call.args))
        many = many.with_args(tuple(layout(x) if has else x for has, x in zip(of_rows, many.args, strict=True)))
    for k, out in enumerate(many()):
        expected = one[k]
        if k in call.row_outputs:
            repeated = out.reshape(times, *expected.shape)
            if not _all_alike(repeated):
                raise _DiffersError
            out = repeated[0]
        elif expected.shape != two[k].shape:  # a mask in the order of memory
            continue
        elif expected.is_floating_point():
            expected = expected + (times - 1) * (two[k] - expected)
        error = ulps(out, expected, dtype=call.args[0].dtype if k in call.coarse else None)
        worst = error if not error <= worst else worst
    return worst


def _all_alike(repeated: Tensor) -> bool:
    numbers = repeated.contiguous().view(_BITS[repeated.element_size()])
    return not bool((numbers != numbers[0]).any())


CHECKS: tuple[Check, ...] = (rules,)
