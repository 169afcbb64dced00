"""Sizes that bring each rule of a plan about.

Of a rule the ends of its band of lengths and one inside, of each of its schedules the fewest rows and, so that blocks
have several turns and many meet, the most that are not large.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from .. import _C
from .._plan import DTYPES, ELEMENTWISE, NORMS, ROW_OPS, Facts, row_name
from ..cases import Layout, misaligned, row_slice, stepped
from ..cases.rope import LONGEST_HEADS

Band = tuple[Any, ...]  # a table's name, a rule of it, a schedule; on the CPU how rows are shared out


class Problem(NamedTuple):
    backward: bool
    wide: bool | None  # parameters, or the result, in float32 beside a half type; None: either
    rows: int
    n: int
    layout: Layout | None = None  # of every tensor; None: contiguous


FEW = 3  # rows that differ, of which float64 has the truth
_SIZES = {name: dtype.itemsize for name, dtype in DTYPES.items()}
_ENDLESS = 70000  # units of rows that are longer than a rule's last bound
LARGE = 1 << 27  # bytes of a tensor on a GPU
_EACH_LENGTH = 8192  # up to which a plan is asked about each
_FEW_ROWS = 9  # so few that blocks share each; three times FEW
_MANY_VECTORS = 1 << 16  # one for each of 256 threads (plan/linear.h) on each of 256 multiprocessors
# Of walk_columns in cuda/: columns of a tile where one is a thread's, and the most blocks of a multiprocessor.
_TILE, _BLOCKS = 32, 16


def bands_of(op: str, dtype: str, card: Facts | None) -> dict[Band, list[Problem]]:
    """What the tables have for an operator; on the CPU where there is no card."""
    if card is None:
        return _on_cpu(dtype, LONGEST_HEADS.get(op, _MOST))
    if op in NORMS:
        return _collect(itertools.chain(_row(op, dtype, card), _norm_backward(op, dtype, card)))
    if op in ROW_OPS:
        return _collect(_row(op, dtype, card))
    if op == "linear":
        return _collect(_linear(dtype, card))
    if op == "lltm":
        return _collect(_lltm(card))
    return _collect(_pointwise(op, dtype) if op in ELEMENTWISE else _untold())


def _collect(found: Iterable[tuple[Band, Problem]]) -> dict[Band, list[Problem]]:
    bands: dict[Band, list[Problem]] = {}
    for band, problem in found:
        bands.setdefault(band, []).append(problem)
    return bands


def _wide(dtype: str) -> tuple[bool, ...]:
    return (False, True) if _SIZES[dtype] == 2 else (False,)


def _rows(card: Facts) -> tuple[int, ...]:
    """Around every number of rows that a schedule may ask for."""
    bounds = (64, *(k * card[0] for k in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 40)))
    return tuple(sorted({1, *(rows_from(max(1, bound + more)) for bound in bounds for more in (-6, 0, 6))}))


def rows_from(least: int) -> int:
    """So many or a few more: an odd number of repetitions of ``FEW``, so that some schedule has a row left over."""
    return FEW * (-(-least // FEW) | 1)


def _shape(plan: Callable[[int, int], dict[str, Any]], rows: int, of: Iterable[str], n: int) -> tuple[Any, ...]:
    """What a plan says under these names, None where it has no such."""
    found = plan(rows, n)
    return tuple(found.get(name) for name in of)


def _units_per_thread(plan: Callable[[int, int], dict[str, Any]], size: int, n: int) -> tuple[int, int]:
    """The rule of very many rows of n numbers of so many bytes, and how many units of a row a thread holds; 0: none."""
    found = plan(1 << 20, n)
    units = -(-n * size // _unit(found, size))
    return found["rule"], -(-units // (found["threads"] * found["blocks"])) if found["each"] else 0


def _by_shape(lengths: Iterable[int], shape: Callable[[int], Any]) -> dict[Any, list[int]]:
    """The lengths of each shape, in their order."""
    found: dict[Any, list[int]] = {}
    for n in lengths:
        found.setdefault(shape(n), []).append(n)
    return found


def _ends(lengths: list[int]) -> list[int]:
    return sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})


@functools.cache
def lengths_near_bounds(table: str, dtype: str) -> tuple[int, ...]:
    """Lengths at, and on both sides of, the bound of every rule of the norms: whole units, and what is next to them."""
    size, found = _SIZES[dtype], {1, 2, 3, 5}
    for rule in _C.plan_rules()[table]:
        unit = _unit(rule, size)
        bound = rule["up to"] if rule["up to"] < 2**40 else _ENDLESS
        for units in (bound, bound + 1, bound // 64 * 64, bound // 96 * 96, bound // 96 * 96 - 96, bound - 1):
            n = units * unit // size
            found |= {n, n - 1, n + 1, n - 16 // size, n + 16 // size, n - 8 // size, n + 8 // size}
    return tuple(sorted(n for n in found if n > 0))


@functools.cache
def _lengths_of_teams(table: str, dtype: str) -> tuple[int, ...]:
    """The last length that so many warps of a rule can hold, and the next one."""
    size, found = _SIZES[dtype], set[int]()
    for rule in _C.plan_rules()[table]:
        unit, of_a_warp = _unit(rule, size), 32 * rule["each"]
        for units in range(of_a_warp, min(rule["up to"], _ENDLESS) + 1, of_a_warp) if of_a_warp else ():
            found |= {units * unit // size, (units + 1) * unit // size, units * unit // size + 1}
    return tuple(sorted(found))


def _unit(rule: dict[str, Any], size: int) -> int:
    """Bytes of what a rule counts its lengths in, of numbers of so many bytes."""
    return {"16 bytes": 16, "8 bytes": 8, "words": max(4, size), "elements": size}[rule["read by"]]


def _by_rule(
    dtype: str,
    lengths: Iterable[int],
    rows: Iterable[int],
    plan: Callable[[int, int], dict[str, Any]],
    of: Iterable[str],
) -> Iterator[tuple[Band, int, int]]:
    """(band, rows, n) of ``plan(rows, n)``; ``of``: what tells a rule's schedules apart."""
    for rule, ns in _by_shape(lengths, lambda n: plan(1, n)["rule"]).items():
        for n in _ends(ns):
            counts: dict[Any, list[int]] = {}
            for count in rows:
                found = plan(count, n)
                counts.setdefault(tuple(found[name] for name in of), []).append(count)
            for schedule, of_schedule in counts.items():
                few, *more = of_schedule
                many = max((count for count in more if count * n * _SIZES[dtype] <= LARGE), default=few)
                yield from (((rule, *schedule), count, n) for count in sorted({few, many}))


def _norm_backward(op: str, dtype: str, card: Facts) -> Iterator[tuple[Band, Problem]]:
    norm, residual = NORMS[op]
    table = "norm_backward"
    for wide in _wide(dtype):

        def plan(rows: int, n: int, parameter: str = "f32" if wide else dtype) -> Any:
            return _C.plan_norm_backward(norm, dtype, parameter, residual, rows, n, card)

        # The gradient of a row of one or two numbers is a difference of equal numbers, which has no digits to compare.
        lengths = [n for n in lengths_near_bounds(table, dtype) if n > 2]
        for band, rows, n in _by_rule(dtype, lengths, _rows(card), plan, ["schedule"]):
            yield (table, *band), Problem(True, wide, rows, n)
        # Of each number of warps and of teams in a block the shortest row, and the longest, which has the most
        # shared memory, and the shortest of each number of units that a thread holds; so many that no schedule of
        # fewer has them.
        of_teams = sorted({*range(3, _EACH_LENGTH), *_lengths_of_teams(table, dtype)})
        teams = functools.partial(_shape, plan, 1 << 20, ("rule", "threads", "blocks", "teams"))
        ends = {(rule, n) for (rule, *_), ns in _by_shape(of_teams, teams).items() for n in (ns[0], ns[-1])}
        per_thread = functools.partial(_units_per_thread, plan, _SIZES[dtype])
        shortest = {(rule, ns[0]) for (rule, _), ns in _by_shape(of_teams, per_thread).items()}
        for rule, n in sorted(ends | shortest):
            fewest = {plan(rows, n)["schedule"]: rows for rows in reversed(_rows(card)) if rows > 1}
            schedule, rows = max(fewest.items())
            yield (table, rule, schedule), Problem(True, wide, rows, n)


def _row_lengths(name: str, read: str, written: str) -> set[int]:
    """Return lengths at, and on both sides of, the bound of every rule of the row engine that names the operator."""
    lengths = set[int]()
    for rule in _C.plan_rules()["row"]:
        if name in rule["op"]:
            width = _C.plan_row_width(rule["read by"], read, written)
            bound = min(rule["up to"], _ENDLESS) * width
            lengths |= {bound + more for more in (-width, -4, -2, -1, 0, 1, 2, 4, width)}
    return {n for n in lengths if n > 0}


def _row(op: str, dtype: str, card: Facts) -> Iterator[tuple[Band, Problem]]:
    for backward in (False,) if op in NORMS else (False, True):
        name = row_name(op, backward, dtype)
        for wide in _wide(dtype) if op in NORMS or name.startswith("softmax") else (None,):
            read, written = dtype, "f32" if wide and op not in NORMS else dtype

            def plan(rows: int, n: int, name: str = name, read: str = read, written: str = written) -> Any:
                return _C.plan_row(name, read, written, rows, n, card)

            lengths = _row_lengths(name, read, written) | {1}
            if not name.startswith("softmax"):  # of one class a gradient is the difference of equal numbers
                lengths.discard(1)
            of = ["kernel", "blocks", "teams"]
            for band, rows, n in _by_rule(dtype, sorted(lengths), _rows(card), plan, of):
                yield ("row", name, *band), Problem(backward, wide, rows, n)
            # Of each number of blocks that share a row the shortest and the longest of these.
            shared = functools.partial(_shape, plan, _FEW_ROWS, ("rule", *of))
            for band, ns in _by_shape(sorted({*lengths, *(16 << k for k in range(18))}), shared).items():
                for n in {ns[0], ns[-1]} if band[-2] > 1 else ():
                    yield ("row", name, *band), Problem(backward, wide, _FEW_ROWS, n)


def _linear(dtype: str, card: Facts) -> Iterator[tuple[Band, Problem]]:
    for backward in (False, True):
        table = f"linear_{'backward' if backward else 'forward'}"
        for bias in (True,) if backward else (False, True):
            seen = set()
            for n in (3, 5, 6, 66, 450, 451, 768, 769, 1024, 4096):
                # So many that also rows shorter than a vector would go by vectors, if a forward rule let them.
                many = rows_from(_MANY_VECTORS * 16 // _SIZES[dtype] // n)
                for rows in (*_rows(card), *(() if backward else (many,))):
                    rule = _C.plan_epilogue(backward, dtype, rows, n, bias, True, card)
                    if rows == many or (rule, n) not in seen:
                        seen.add((rule, n))
                        yield (table, rule, n * _SIZES[dtype] % 16), Problem(backward, None, rows, n)
    yield from _many_tiles("linear", card)


def _lltm(card: Facts) -> Iterator[tuple[Band, Problem]]:
    # At last a multiple of 8 bytes that is none of 16 in half types, and whole vectors.
    for rows, n in ((3, 33), (15, 61), (39, 67), (39, 108), (39, 264)):
        for backward in (False, True):
            yield ("lltm", n), Problem(backward, None, rows, n)
    yield from _many_tiles("lltm", card)


def _many_tiles(op: str, card: Facts) -> Iterator[tuple[Band, Problem]]:
    """Of a bias gradient so many tiles of columns that there are no blocks left for chunks of rows."""
    yield (op, "many tiles"), Problem(True, None, rows_from(65), _TILE * _BLOCKS * card[0] + 1)


def _pointwise(op: str, dtype: str) -> Iterator[tuple[Band, Problem]]:
    """Runs and rows, with what is aligned and what is not, above and below each number of elements."""
    vectors = 16 // _SIZES[dtype]
    of = "gated" if op.endswith("glu") else "any"
    for layout, name, n in (
        (None, "one run", 9 * vectors),
        (misaligned, "one run", 67),
        (row_slice, "rows", 8 * vectors),
        (row_slice, "rows", 67),
        (stepped, "strided", 67),
    ):
        for rows in map(rows_from, (5, 5200 // n + 1)):
            rule = _C.plan_pointwise(name, n % vectors == 0, of, rows * n)
            for backward in (False, True):
                yield ("pointwise", rule), Problem(backward, None, rows, n, layout)
    if of == "gated":  # those of a call's forms that have a scale for each row
        yield ("pointwise", _C.plan_pointwise("rows", False, "numbered", 603)), Problem(False, None, 9, 67)
    for backward in (False, True):
        yield ("long",), Problem(backward, None, 3, 16411)
        yield ("many",), Problem(backward, None, 4203, 997)


def _untold() -> Iterator[tuple[Band, Problem]]:
    """Of an operator that has no table: few rows, many, long ones."""
    for rows, n in ((1, 64), (141, 129), (4203, 64), (33003, 64), (39, 4099)):
        for backward in (False, True):
            yield ("rows", rows, n), Problem(backward, None, rows, n)


# The fewest numbers first. Rows of more than 64 segments, which are long, are one or three. A row of 16408 float32
# numbers, or 16400 of a half type, ends in the middle of a line, where nothing of a whole line is aligned.
_ON_CPU = sorted(
    (
        *((1, 300007), (3, 300007)),
        *itertools.product(
            (1, 3, 39, 63, 141, 1101, 2103, 4203, 33003),
            (7, 64, 67, 1024, 2051, 4096, 4099, 8195, 16400, 16408, 33000, 44003),
        ),
    ),
    key=math.prod,
)
_MOST = 1 << 25  # numbers
_STREAMED = 1 << 26  # bytes that go past the caches
_SHORT, _CACHED = 256, 1 << 23  # bytes of a row that is short, and of what stays in the caches
STREAMED = "cpu, past the caches"


def _on_cpu(dtype: str, longest: int) -> dict[Band, list[Problem]]:
    """How rows, their segments and their sums are shared out among threads, and where the results go."""
    bands: dict[Band, list[Problem]] = {}
    for rows, n in dict.fromkeys((rows, min(n, longest)) for rows, n in _ON_CPU):
        if rows * n > 1.1 * _MOST:
            continue
        found = _C.plan_cpu(dtype, rows, n, torch.get_num_threads())
        shared = (
            "cpu",
            found["segments"] > 1,
            found["shares segments"],
            found["streams"],
            rows >= 4096,
            min(found["chunks"], 2),
            found["chunks share segments"],
            found["rows a task"] > 1,
            n * _SIZES[dtype] <= _SHORT < _CACHED <= rows * n * _SIZES[dtype],
            found["segments"] > 64,
        )
        of_both: list[Band] = [shared]
        if rows * n * _SIZES[dtype] >= _STREAMED:  # whether rows are whole lines, and whole words
            of_both.append((STREAMED, *(n * _SIZES[dtype] % unit == 0 for unit in (64, 8))))
        if any(band not in bands for band in of_both):
            problems = [Problem(backward, None, rows, n) for backward in (False, True)]
            bands |= {band: problems for band in of_both if band not in bands}
    return bands
