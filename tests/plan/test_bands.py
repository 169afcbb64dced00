"""The selftest's problems: each rule of every table, and each of its schedules, on cards of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from rules import RowProblem, bands, rows_of_schedules

from fastops import _C
from fastops._plan import CARDS, NORMS, OPS, row_name
from fastops.selftest.bands import FEW, STREAMED, Band, bands_of

ALL: dict[str, set[Band]] = {
    card: {band for op in OPS for dtype in ("f16", "bf16", "f32", "f64") for band in bands_of(op, dtype, CARDS[card])}
    for card in ("h200", "a100", "t4")
}
GROUPS = ("norm", "dtype", "residual", "bytes of")


def test_each_schedule_of_the_norms_backward_runs_on_a_card() -> None:
    """A schedule that names no problem of its rule, or that is behind another one for all of its rows, is left out."""
    table = "norm_backward"
    reached = {band[1:] for bands in ALL.values() for band in bands if band[0] == table}
    for number, rule in enumerate(_C.plan_rules()[table]):
        taken: list[dict[str, Any]] = []
        for k, schedule in enumerate(rule["schedules"]):
            names = schedule["for"]
            behind = any(all(set(names[g]) <= set(before[g]) for g in GROUPS) for before in taken)
            if all(names[g] for g in GROUPS) and not behind:
                assert (number, k) in reached, f"schedule {k} of rule {number} is not reached"
            if schedule["rows"] == "any":
                taken.append(names)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_each_number_of_warps_runs_in_the_norms_backward(dtype: str) -> None:
    """Each has its shortest row, in which the last warp has the least to do."""
    card = CARDS["h200"]

    def team(n: int) -> tuple[int, ...]:
        found = _C.plan_norm_backward("rms", dtype, dtype, False, 1, n, card)
        return tuple(found[name] for name in ("rule", "threads", "blocks"))

    reached = {p.n for band, of in bands_of("rms_norm", dtype, card).items() for p in of if band[0] == "norm_backward"}
    shortest: dict[tuple[int, ...], int] = {}
    for n in range(3, 20000):
        shortest.setdefault(team(n), n)
    teams = {of: n for of, n in shortest.items() if (of[0], of[2]) in {(o[0], o[2]) for o in shortest if o[1] != of[1]}}
    assert len(teams) > 20
    assert {of: n for of, n in teams.items() if n not in reached} == {}


@pytest.mark.parametrize("op", ["softmax", "cross_entropy", "rms_norm", "add_layer_norm"])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
def test_each_row_rule_of_an_operator_runs_with_each_kernel(op: str, dtype: str) -> None:
    """Cards with clusters and without have other rules; a block of one team and of several is two kernels."""
    for backward in (False,) if op in NORMS else (False, True):
        problem = RowProblem(row_name(op, backward, dtype), dtype, dtype)
        for card in (CARDS["h200"], CARDS["a100"]):
            found = {(*band[2:4], band[5]) for band in bands_of(op, dtype, card) if band[:2] == ("row", problem.op)}
            for rule, ns in bands(problem, card).items():
                for n in ns:
                    for kernel, _, teams in rows_of_schedules(problem, n, card):
                        assert (rule, kernel, teams) in found


def test_each_row_rule_runs_on_a_card() -> None:
    """The selftest reaches each rule, test_row_kernels.py those of losses with options in half types and float32."""
    reached = {band[2] for found in ALL.values() for band in found if band[0] == "row"}
    names = ("likelihood_general", "likelihood_general_backward")
    options = [RowProblem(name, dtype, dtype) for name in names for dtype in ("f16", "bf16", "f32")]
    reached |= {rule for problem in options for card in ALL for rule in bands(problem, CARDS[card])}
    assert reached == set(range(len(_C.plan_rules()["row"])))


@pytest.mark.parametrize("card", ALL)
def test_each_rule_of_the_others_runs(card: str) -> None:
    reached = {(band[0], band[1]) for band in ALL[card] if len(band) > 1}
    for table in ("pointwise", "linear_forward", "linear_backward"):
        for number in range(len(_C.plan_rules()[table])):
            assert (table, number) in reached, f"{table}: rule {number} is not reached"


def test_each_way_of_sharing_on_the_cpu() -> None:
    """Each fact by which rows are shared out is there both ways."""
    for dtype in ("bf16", "f32", "f64"):
        bands = list(bands_of("rms_norm", dtype, None))
        shared = [band for band in bands if band[0] != STREAMED]
        for fact in (1, 2, 3, 4, 5, 7, 9):
            assert len({band[fact] for band in shared}) == 2, (dtype, fact)
        past_the_caches = {band[1:] for band in bands if band[0] == STREAMED}
        assert past_the_caches == {(True, True), (False, True), (False, dtype == "f64")}


@pytest.mark.parametrize("multiprocessors", [1, 4, 20, 132])
@pytest.mark.parametrize("op", ["rms_norm", "softmax", "linear", "lltm", "relu", "rope"])
def test_rows_are_whole_repetitions(multiprocessors: int, op: str) -> None:
    card = (multiprocessors, *CARDS["t4"][1:])
    for card_or_cpu in (card, None):
        rows = {p.rows for problems in bands_of(op, "bf16", card_or_cpu).values() for p in problems}
        assert all(count == 1 or (count % FEW == 0 and count // FEW % 2) for count in rows), sorted(rows)
