"""Rows for the tables of rules: the shortest and the longest of each rule, the fewest of each schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastops import _C
from fastops._plan import CARDS, Facts
from fastops.selftest.bands import lengths_near_bounds

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
# The dtype of the rows and of the parameters.
TYPES = (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f32", "f32"), ("f64", "f64"))


def rules(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _C.plan_rules()[table]
    return found


@dataclass(frozen=True)
class Problem:
    """A backward of a norm: all that the order of summation may depend on, beside the length and the card."""

    norm: str
    dtype: str
    parameter: str
    residual: bool
    table = "norm_backward"

    def plan(self, rows: int, n: int, card: Facts) -> dict[str, Any]:
        return _C.plan_norm_backward(self.norm, self.dtype, self.parameter, self.residual, rows, n, card)

    def schedule(self, plan: dict[str, Any]) -> Any:
        return plan["schedule"]

    def lengths(self) -> tuple[int, ...]:
        return lengths_near_bounds(self.table, self.dtype)

    def __str__(self) -> str:
        return f"{'add_' if self.residual else ''}{self.norm}_norm-{self.dtype}-{self.parameter}"


PROBLEMS = [
    Problem(norm, dtype, parameter, residual)
    for norm in ("layer", "rms")
    for dtype, parameter in TYPES
    for residual in (False, True)
]


@dataclass(frozen=True)
class RowProblem:
    """An operator of the row engine's table, with the dtypes that it reads and writes."""

    op: str
    read: str
    written: str
    table = "row"

    @property
    def dtype(self) -> str:
        return self.read

    def plan(self, rows: int, n: int, card: Facts) -> dict[str, Any]:
        return _C.plan_row(self.op, self.read, self.written, rows, n, card)

    def schedule(self, plan: dict[str, Any]) -> Any:
        return plan["kernel"], plan["blocks"], plan["teams"]

    def lengths(self) -> tuple[int, ...]:
        """Return lengths at, and on both sides of, each rule's bound, and others that several parts of a row hold."""
        names = {rule["read by"] for rule in rules("row")}
        widths = {name: _C.plan_row_width(name, self.read, self.written) for name in names}
        found = {1, 2, 3, *widths.values()}
        for rule in rules("row"):
            if self.op not in rule["op"]:
                continue
            width, part = widths[rule["read by"]], rule["threads"] * rule["each"]
            parts = (2, 3, 5, 17) if part else ()  # 17: more than there are shares
            for vectors in (rule["up to"], *(count * part for count in parts), *(count * part + 40 for count in parts)):
                if vectors < 2**40:
                    found |= {vectors * width + more for more in (-width, -4, -2, -1, 0, 1, 2, 4, width)}
        return tuple(sorted(n for n in found if n > 0))

    def __str__(self) -> str:
        return f"{self.op}-{self.read}-{self.written}"


SAME_TYPES = tuple((dtype, dtype) for dtype in SIZES)
NORMS = [RowProblem(op, *types) for op in ("rms_norm", "layer_norm") for types in SAME_TYPES]
ROW_PROBLEMS = [
    *(RowProblem("softmax", *types) for types in (*SAME_TYPES, ("bf16", "f32"), ("f16", "f32"))),
    *(RowProblem("softmax_backward", *types) for types in (*SAME_TYPES, ("f32", "bf16"), ("f32", "f16"))),
    *(RowProblem(f"likelihood{way}", *types) for way in ("", "_backward") for types in SAME_TYPES[:-1]),
    *(RowProblem(f"likelihood_general{way}", *types) for way in ("", "_backward") for types in SAME_TYPES),
    *NORMS,
]


@cache
def bands(problem: Problem | RowProblem, card: Facts) -> dict[int, tuple[int, ...]]:
    """Return the shortest and the longest of the problem's lengths for each rule that it has on the card."""
    found: dict[int, list[int]] = {}
    for n in problem.lengths():
        found.setdefault(problem.plan(1, n, card)["rule"], []).append(n)
    return {rule: tuple(dict.fromkeys((ns[0], ns[-1]))) for rule, ns in found.items()}


def rows_of_schedules(problem: Problem | RowProblem, n: int, card: Facts) -> dict[Any, int]:
    """Return the fewest rows, of some numbers, for each schedule that rows of this length have."""
    multiprocessors = card[0]
    bounds = (2, 64, *(multiprocessors // k for k in (8, 4, 2)))
    bounds += tuple(k * multiprocessors for k in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 40))
    found: dict[Any, int] = {}
    for rows in sorted({1, *(bound + more for bound in bounds for more in (0, 1))}):
        found.setdefault(problem.schedule(problem.plan(rows, n, card)), rows)
    return found


def every_form(card: str) -> Iterator[tuple[Problem, int, int, int, int]]:
    """Yield (problem, rule, schedule, rows, n) of the norms' backward for a named card."""
    facts = CARDS[card]
    for problem in PROBLEMS:
        for rule, ns in bands(problem, facts).items():
            for n in ns:
                for schedule, rows in rows_of_schedules(problem, n, facts).items():
                    yield problem, rule, schedule, rows, n


@cache
def lengths(
    table: str, *reads_by: str, dtypes: tuple[str, ...] = tuple(SIZES), most: int = 1 << 20, cards: str = "h100 a100"
) -> tuple[int, ...]:
    """Return the shortest and the longest rows of the norms' rules that read so: "row", or "norm_backward"."""
    table_of, found = rules(table), set[int]()
    problems: list[Problem] | list[RowProblem] = NORMS if table == "row" else PROBLEMS
    for card in cards.split():
        for problem in problems:
            if problem.dtype in dtypes:
                for rule, ns in bands(problem, CARDS[card]).items():
                    if table_of[rule]["read by"] in reads_by:
                        found.update(ns)
    return tuple(sorted(n for n in found if n <= most))
