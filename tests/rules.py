"""The rows that the norms' tables speak of: for each rule its shortest and longest, for each schedule how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastops import _C
from fastops._plan import CARDS, Facts
from fastops.selftest.bands import lengths_near_bounds

TABLES = ("norm_forward", "norm_backward")
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
# The dtype of the rows and of the parameters.
TYPES = (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f32", "f32"), ("f64", "f64"))


@dataclass(frozen=True)
class Problem:
    """All that the order of summation may depend on, beside the length and the card."""

    norm: str
    dtype: str
    parameter: str
    residual: bool

    def plan(self, table: str, rows: int, n: int, card: Facts) -> dict[str, Any]:
        plan: dict[str, Any] = getattr(_C, f"plan_{table}")(
            self.norm, self.dtype, self.parameter, self.residual, rows, n, card
        )
        return plan

    def __str__(self) -> str:
        return f"{'add_' if self.residual else ''}{self.norm}_norm-{self.dtype}-{self.parameter}"


PROBLEMS = [
    Problem(norm, dtype, parameter, residual)
    for norm in ("layer", "rms")
    for dtype, parameter in TYPES
    for residual in (False, True)
]


def rules(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _C.plan_rules()[table]
    return found


@cache
def bands(table: str, problem: Problem, card: Facts) -> dict[int, tuple[int, ...]]:
    """For each rule that the problem has on the card, the shortest and the longest of these lengths."""
    found: dict[int, list[int]] = {}
    for n in lengths_near_bounds(table, problem.dtype):
        found.setdefault(problem.plan(table, 1, n, card)["rule"], []).append(n)
    return {rule: tuple(dict.fromkeys((ns[0], ns[-1]))) for rule, ns in found.items()}


def rows_of_schedules(table: str, problem: Problem, n: int, card: Facts) -> dict[int, int]:
    """For each schedule of the rule for rows of this length, the fewest rows of these that it has."""
    multiprocessors = card[0]
    found: dict[int, int] = {}
    for rows in (
        1,
        3,
        64,
        65,
        *(k * multiprocessors + d for k in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 40) for d in (0, 1)),
    ):
        found.setdefault(problem.plan(table, rows, n, card)["schedule"], rows)
    return found


def every_form(card: str) -> Iterator[tuple[str, Problem, int, int, int, int]]:
    """(table, problem, rule, schedule, rows, n) of a named card."""
    facts = CARDS[card]
    for table in TABLES:
        for problem in PROBLEMS:
            for rule, ns in bands(table, problem, facts).items():
                for n in ns:
                    for schedule, rows in rows_of_schedules(table, problem, n, facts).items():
                        yield table, problem, rule, schedule, rows, n


@cache
def lengths(
    table: str, *reads_by: str, dtypes: tuple[str, ...] = tuple(SIZES), most: int = 1 << 20, cards: str = "h100 a100"
) -> tuple[int, ...]:
    """The shortest and the longest rows of each rule that reads so, for all problems of these dtypes."""
    table_of, found = rules(table), set()
    for card in cards.split():
        for problem in PROBLEMS:
            if problem.dtype in dtypes:
                for rule, ns in bands(table, problem, CARDS[card]).items():
                    if table_of[rule]["read by"] in reads_by:
                        found.update(ns)
    return tuple(sorted(n for n in found if n <= most))


def rows_by_twos(dtype: str, card: str) -> list[tuple[str, bool, int, int]]:
    """(norm, residual, rows, n): the shortest and the longest rows that go two to a block or a cluster."""
    found = []
    for table, problem, rule, schedule, rows, n in every_form(card):
        if table == "norm_forward" and problem.dtype == problem.parameter == dtype:
            of = rules(table)[rule]["schedules"][schedule]
            if of["rows each"] == 2:
                found.append((problem.norm, problem.residual, rows, n))
    return found
