"""Every rule of a plan runs: rows of which float64 has few, repeated to as many as the rule asks for.

A row's results do not depend on the other rows: each repetition has the bits of the first, which is compared with
float64. A sum over rows, or their mean, is linear in the number of repetitions, of which float64 computes one and two.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._plan import DTYPES, card_here
from ..cases import Layout, RawCall
from ..cases.inputs import HALVES, of_wider
from .accuracy import largest_error, wide_copies
from .bands import FEW, LARGE, STREAMED, Band, Problem, bands_of
from .behind import just_written
from .bits import all_alike, other_bits
from .checks import MAIN_DTYPES, Check, Outcome, is_statistic
from .noise import noise_on
from .poison import NotPoisonedError, written_behind
from .target import Target
from .together import on_cpu

REACHED = "rules reached"  # its outcome's detail: how many of how many
_SHORT = 512
_ALIKE, _CHAIN = 1 / 3, 256  # ulps for each of so many rows
_FEW_NUMBERS, _MANY, _LARGE = 1 << 12, 1 << 17, 1 << 22
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def rules(t: Target) -> Iterator[Outcome]:
    """The ends of each rule's band of lengths and one inside, each of its schedules."""
    bands = _bands(t)
    if not bands:
        return
    limit = t.bound().anywhere(t.path.device)
    wrong: dict[str, str] = {}
    reached: set[Band] = set()
    worst, worst_at = 0.0, ""
    few_numbers = _FEW_NUMBERS if t.quick or (t.path.lower and not t.first) else _MANY
    for problem, its_bands, each in _each_rule(t, bands, few_numbers):
        reached.update(its_bands)
        what, times = f"{each.call.op}, {problem.rows} rows of {problem.n}", each.times(problem)
        many = each.many(times, problem.layout)
        outputs = many()
        again = _again(t, many, outputs, problem)
        try:
            error = each.error(outputs, times, again)
        except _DiffersError as how:
            wrong[each.call.op] = f"{what}: {how}"
            continue
        if t.path.kind == "cuda" and not t.quick and _writes_behind(many, outputs):  # a quick run has guard pages alone
            wrong[each.call.op] = f"{what}: writes behind an output"
        if not error <= worst:
            worst, worst_at = error, what
    detail = "; ".join(wrong.values()) or worst_at
    yield Outcome("rows of every rule", worst <= limit and not wrong, worst, limit, detail)
    yield Outcome(REACHED, len(reached) == len(bands), detail=f"{len(reached)} of {len(bands)}")


def calls_of_rules(t: Target, most: int) -> Iterator[tuple[RawCall, str]]:
    """Contiguous calls of each rule, of so many bytes a tensor, also of float32 beside a half type."""
    for problem, _, each in _contiguous(t, most):
        yield each.many(each.times(problem), None), f"{each.call.op}, {problem.rows} rows of {problem.n}"


def one_of_each_rule(t: Target, most: int) -> Iterator[RawCall]:
    """Of :func:`calls_of_rules` the first of each op, rule and schedule."""
    seen: set[tuple[str, Band]] = set()
    for problem, bands, each in _contiguous(t, most):
        new = {(each.call.op, band) for band in bands} - seen
        if new:
            yield each.many(each.times(problem), None)
        seen |= new


def _contiguous(t: Target, most: int) -> Iterator[tuple[Problem, list[Band], _Few]]:
    size = 4 if t.dtype in HALVES else t.dtype.itemsize
    return (found for found in _each_rule(t, _bands(t, most // size, (min,)), 0) if not found[0].layout)


def _each_rule(
    t: Target, bands: dict[Band, list[Problem]], few_numbers: int
) -> Iterator[tuple[Problem, list[Band], _Few]]:
    """``few_numbers``: see :func:`_chosen`."""
    by_size: dict[tuple[int, int], dict[Problem, list[Band]]] = {}
    large: set[Any] = set()
    # The first of what is large has every call: one whose rows are whole lines, which all stores past the caches ask.
    for band, problems in sorted(bands.items(), key=lambda item: item[0] != (STREAMED, True, True)):
        for problem in problems:
            by_size.setdefault((min(FEW, problem.rows), problem.n), {}).setdefault(problem, []).append(band)
    for size, those in by_size.items():
        make = t.make()
        few = [_Few(call, size) for call in t.case.raw(make, *size) if call.args_of is None]
        few.sort(key=lambda each: -len(each.call.row_outputs))
        for problem, its_bands in those.items():
            for each in _chosen(few, t, problem, few_numbers, large):
                yield problem, its_bands, each


def _bands(t: Target, most: int = sys.maxsize, ends: Iterable[Any] = ()) -> dict[Band, list[Problem]]:
    """Of so many numbers at most. A quick run has what is not large, many of the shortest rows of a band and, but for
    its first dtype, few of the longest; or these ``ends``.

    On the CPU what is large is of two dtypes at the best level: all are of one source.
    """
    on_cpu = t.path.kind == "cpu"
    found = bands_of(t.case.name, NAMES[t.dtype], None if on_cpu else card_here()[1])
    each_level: dict[Band, list[Problem]] = {}  # a forward past the caches, where stores are a level's own
    if t.path.lower and t.first and most == sys.maxsize:
        streamed = [band for band in found if band[0] == STREAMED][:1]
        each_level = {band: [p for p in found[band] if not p.backward] for band in streamed}
    if t.quick or (on_cpu and not (t.path.best and t.dtype in MAIN_DTYPES)):
        most = min(most, _LARGE if on_cpu else LARGE // t.dtype.itemsize)
    found = {band: [p for p in problems if p.rows * p.n <= most] for band, problems in found.items()}
    found |= each_level
    if t.quick:
        ends = ends or ((min,) if t.first else (min, max))
        found = {band: _at_ends(problems, ends) for band, problems in found.items()}
    return {band: problems for band, problems in found.items() if problems}


def _at_ends(problems: list[Problem], ends: Iterable[Any]) -> list[Problem]:
    alike: dict[Any, list[Problem]] = {}
    for p in problems:
        alike.setdefault((p.backward, p.wide, p.layout), []).append(p)
    chosen = (end(of, key=lambda p: (p.n, -p.rows)) for of in alike.values() for end in ends)
    return list(dict.fromkeys(chosen))


def _chosen(few: list[_Few], t: Target, problem: Problem, few_numbers: int, large: set[Any]) -> Iterator[_Few]:
    """The calls of the problem's direction and dtypes; of more numbers one of each kind, and on a GPU, where kernels
    differ by them, of each set of gradients that are asked for.

    On the CPU the first ``large`` problem has all of these. The others have one call of each op, of its most results:
    they differ in how rows lie in memory and are shared out.
    """
    seen: set[Any] = set()
    is_large = t.path.kind == "cpu" and problem.rows * problem.n > _LARGE
    for each in few:
        op = each.call.op
        fits = op.endswith("_backward") == problem.backward
        fits = fits and problem.wide in (None, _is_wide(each.call, t.dtype))
        if not fits:
            continue
        asked = tuple(x for x in each.call.args if isinstance(x, bool)) if t.path.kind == "cuda" else ()
        kind = (*kind_of(each.call), *asked)
        if problem.rows * problem.n > few_numbers and kind in seen:
            continue
        if is_large and op in seen and kind in large:
            continue
        seen |= {op, kind}
        large |= {kind} if is_large else set()
        yield each


def kind_of(call: RawCall) -> tuple[Any, ...]:
    """The op, the number of its results, and the dtypes that its arguments have or ask for."""
    dtypes = tuple(x.dtype if isinstance(x, Tensor) else x for x in call.args if _has_dtype(x))
    return call.op, len(call.row_outputs), dtypes


def _has_dtype(x: Any) -> bool:
    return isinstance(x, torch.dtype) or (isinstance(x, Tensor) and x.is_floating_point())


def _again(t: Target, call: RawCall, outputs: tuple[Tensor, ...], problem: Problem) -> list[Tensor]:
    """Whether other runs have other bits: of rows apart, and on a GPU of blocks and warps that meet in other orders.

    There a contiguous call also runs behind a kernel that writes its inputs late.
    """
    if t.path.kind == "cpu":
        is_small = problem.rows * problem.n <= _MANY
        return [other_bits(_apart(call, 16)(), outputs)] if is_small and not problem.layout else []
    make_noise = noise_on(outputs[0].device)
    # A vector, or one number, more between rows than contiguous ones have.
    layouts = ([None] * 3 if problem.layout else [16, 1])[: 1 if t.quick else None]
    differs = [] if problem.layout else [other_bits(just_written(call)(), outputs)]
    for between in layouts:
        laid_out = _apart(call, between) if between else call
        make_noise()
        differs.append(other_bits(laid_out(), outputs))
    if not problem.layout and call.row_outputs:
        make_noise()
        differs.append(_in_another_order(call, outputs))
    return differs


def _in_another_order(call: RawCall, outputs: tuple[Tensor, ...]) -> Tensor:
    """Whether rows in a random order have other results.

    What a kernel still holds of an earlier row may be the same row where rows are repeated in turn.
    """
    rows = [k for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.dim() and k not in call.shared]
    order = torch.randperm(len(call.args[rows[0]]), generator=torch.Generator().manual_seed(0))
    order = order.to(outputs[0].device, non_blocking=True)
    found = call.with_tensors({k: call.args[k].index_select(0, order) for k in rows})()
    expected = [outputs[k].index_select(0, order) for k in call.row_outputs]
    return other_bits([found[k] for k in call.row_outputs], expected)


def _apart(call: RawCall, more: int) -> RawCall:
    """Between rows of each tensor lie so many bytes more, at least a number, than between those of the one before."""
    lies = [k for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.dim() > 1 and not is_statistic(call, k)]
    least = {k: max(1, more // call.args[k].element_size()) for k in lies}
    return call.with_tensors({k: of_wider(call.args[k], times * least[k]) for times, k in enumerate(lies, 1)})


def _writes_behind(call: RawCall, outputs: tuple[Tensor, ...]) -> bool:
    with contextlib.suppress(NotPoisonedError):
        return written_behind(call, outputs)
    return False


class _DiffersError(Exception):
    pass


class _Few:
    """A call of few rows, and what it is to return, in float64."""

    def __init__(self, call: RawCall, size: tuple[int, int]) -> None:
        self.call, (self.rows, self.n) = call, size

    def times(self, problem: Problem) -> int:
        times, rest = divmod(problem.rows, self.rows)
        if rest:
            raise ValueError(f"{problem.rows} rows are no repetitions of {self.rows}")
        return times

    @functools.cached_property
    def alone(self) -> tuple[Tensor, ...]:
        """What these rows give by themselves."""
        return self.call()

    @functools.cached_property
    def truths(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of the rows once and twice."""
        both = (self.call, self.call.repeated(2))
        one, two = (of.reference.with_args(wide_copies(of.args, where_they_are=True))() for of in both)
        return one, two

    def many(self, times: int, layout: Layout | None) -> RawCall:
        """The rows so many times."""
        many = self.call.repeated(times)
        if not layout:
            return many
        lies = [isinstance(x, Tensor) and x.dim() > 1 and not is_statistic(many, k) for k, x in enumerate(many.args)]
        return many.with_args(tuple(layout(x) if so else x for so, x in zip(lies, many.args, strict=True)))

    def error(self, outputs: tuple[Tensor, ...], times: int, again: Sequence[Tensor] = ()) -> float:
        """In ulps, of what so many times the rows give. ``again``: whether other runs differ."""
        call, (one, two) = self.call, self.truths
        differs = [(flag, "other bits from run to run") for flag in again]
        found: list[tuple[Tensor, int, torch.dtype]] = []  # errors, of sums over so many rows
        for k, out in enumerate(outputs):
            expected = one[k]
            if k in call.row_outputs:
                repeated = out.reshape(times, *expected.shape)
                differs.append((~all_alike(repeated), "a row differs from its repetition"))
                out = repeated[0]
                differs.append((other_bits([out], [self.alone[k]]), "a row depends on how many there are"))
            elif expected.shape != two[k].shape:  # a mask in the order of memory
                continue
            elif expected.is_floating_point():
                expected = expected + (times - 1) * _of_the_second(expected, two[k])
            dtype = call.args[0].dtype if k in call.coarse else out.dtype
            rows = 1 if k in call.row_outputs else times * self.rows
            found.append((largest_error(out, expected, dtype=dtype), rows, dtype))
        read = iter(on_cpu([*(flag for flag, _ in differs), *(error for error, _, _ in found)]))
        for _, how in differs:
            if next(read):
                raise _DiffersError(how)
        return max((self._of_each(float(next(read)), rows, dtype) for _, rows, dtype in found), default=0.0)

    def _of_each(self, error: float, rows: int, dtype: torch.dtype) -> float:
        """What counts of the largest error of sums over so many rows."""
        # Of repetitions that a chain adds up each rounds alike.
        if rows > 1:
            error = max(0.0, error - _ALIKE * min(rows, _CHAIN) * _eps_of_sums(dtype))
        # Sums along a long row, or over many, round more, and may cancel.
        return error / max(1.0, math.sqrt(max(self.n, rows) / _SHORT))


def _eps_of_sums(dtype: torch.dtype) -> float:
    """The step in which numbers are added up, in steps of their own."""
    return torch.finfo(torch.float32).eps / torch.finfo(dtype).eps if dtype in HALVES else 1.0


def _of_the_second(one: Tensor, two: Tensor) -> Tensor:
    """What a second repetition adds to the first: as much, or nothing to a mean, but for their rounding."""
    added = two - one
    rounding = 8 * torch.finfo(one.dtype).eps * one.abs()
    added = torch.where((added - one).abs() <= rounding, one, added)
    return torch.where(added.abs() <= rounding, 0, added)


def _is_wide(call: RawCall, dtype: torch.dtype) -> bool:
    if dtype not in HALVES:
        return False
    given = (x.dtype if isinstance(x, Tensor) else x for k, x in enumerate(call.args) if not is_statistic(call, k))
    return torch.float32 in given


CHECKS: tuple[Check, ...] = (rules,)
