"""The row engine's table: total, in order, one order of summation for any number of rows, a thread for each element."""

from __future__ import annotations

from typing import Any

import pytest
from rules import ROW_PROBLEMS, SIZES, RowProblem, rows_of_schedules, rules

from fastops import _C
from fastops._plan import CARDS, Facts

RULES = rules("row")
OPS = ("softmax", "softmax_backward", "likelihood", "likelihood_backward", "likelihood_general")
OPS += ("likelihood_general_backward", "rms_norm", "layer_norm")
ORDER = ("rule", "read by", "width", "team", "threads", "each", "parts", "shares")
ROWS = (1, 2, 65, 133, 1000, 100000)
CLUSTERS = (0, 1, 2, 4, 8, 16)
H100 = CARDS["h100"]

every_problem = pytest.mark.parametrize("problem", ROW_PROBLEMS, ids=str)
every_card = pytest.mark.parametrize("card", ["h100", "a100", "l4", "t4"])
every_cluster = pytest.mark.parametrize("clusters", CLUSTERS)


def with_clusters(blocks: int) -> Facts:
    """Return an H100's facts, but for the most blocks of a cluster."""
    return (*H100[:4], blocks)


def read_by(problem: RowProblem, n: int) -> str:
    """Return the access that an operator reads its rows by, as the documentation has it."""
    larger = max(SIZES[problem.read], SIZES[problem.written])
    if problem.read == "f64":
        return "elements"
    if n * larger % 16 == 0:
        return "16 bytes"
    return "8 bytes" if problem.op.endswith("norm") and larger == 2 and n % 4 == 0 else "words"


def width(problem: RowProblem, access: str) -> int:
    sizes = SIZES[problem.read], SIZES[problem.written]
    return {
        "16 bytes": 16 // max(sizes),
        "8 bytes": 8 // max(sizes),
        "words": 2 if min(sizes) == 2 else 1,
        "elements": 1,
    }[access]


@every_problem
@every_card
def test_the_access_depends_on_the_length_and_the_dtypes(problem: RowProblem, card: str) -> None:
    for n in (*range(1, 70), *problem.lengths()):
        for rows in (1, 100000):
            plan = problem.plan(rows, n, CARDS[card])
            assert plan["read by"] == RULES[plan["rule"]]["read by"] == read_by(problem, n)
            assert plan["width"] == width(problem, plan["read by"])


@every_problem
@every_card
def test_a_longer_row_of_the_same_access_comes_to_a_later_rule(problem: RowProblem, card: str) -> None:
    last: dict[str, int] = {}
    for n in problem.lengths():
        plan = problem.plan(7, n, CARDS[card])
        rule = RULES[plan["rule"]]
        assert problem.op in rule["op"]
        assert -(-n // plan["width"]) <= rule["up to"]
        assert plan["rule"] >= last.get(plan["read by"], 0)
        last[plan["read by"]] = plan["rule"]


@pytest.mark.parametrize("op", OPS)
def test_every_rule_of_an_operator_runs_on_some_card(op: str) -> None:
    found = {
        problem.plan(1, n, CARDS[card])["rule"]
        for problem in ROW_PROBLEMS
        if problem.op == op
        for card in ("h100", "a100")
        for n in problem.lengths()
    }
    assert found == {number for number, rule in enumerate(RULES) if op in rule["op"]}


def test_every_schedule_runs_on_some_card() -> None:
    """No schedule is there that no rows come to; a schedule without a number has a block for each share."""
    missing = {
        (number, schedule["kernel"], schedule["blocks"])
        for number, rule in enumerate(RULES)
        for schedule in rule["schedules"]
    }
    for problem in ROW_PROBLEMS:
        for card in ("h100", "a100"):
            for n in problem.lengths():
                for rows in rows_of_schedules(problem, n, CARDS[card]).values():
                    plan = problem.plan(rows, n, CARDS[card])
                    missing.discard((plan["rule"], plan["kernel"], plan["blocks"]))
                    if plan["blocks"] == plan["shares"]:
                        missing.discard((plan["rule"], plan["kernel"], 0))
                    missing.discard((plan["rule"], plan["kernel"], 1))
    assert missing == set()


@every_problem
def test_the_order_of_summation_depends_on_the_row_and_the_cards_clusters(problem: RowProblem) -> None:
    for n in problem.lengths():
        orders: dict[int, set[Any]] = {}
        for card in CARDS.values():
            for rows in ROWS:
                plan = problem.plan(rows, n, card)
                orders.setdefault(card[4], set()).add(tuple(plan[key] for key in ORDER))
        assert len(orders) == 2
        assert all(len(found) == 1 for found in orders.values())


@every_problem
@every_cluster
def test_the_number_of_rows_changes_no_order_of_summation(problem: RowProblem, clusters: int) -> None:
    for n in problem.lengths():
        plans = [problem.plan(rows, n, with_clusters(clusters)) for rows in ROWS]
        assert len({tuple(plan[key] for key in ORDER) for plan in plans}) == 1


@every_problem
@every_cluster
def test_each_element_has_a_thread(problem: RowProblem, clusters: int) -> None:
    """Parts are whole 8 vectors, so that each begins at 128 bytes."""
    for n in problem.lengths():
        plan = problem.plan(7, n, with_clusters(clusters))
        vectors = -(-n // plan["width"])
        part = -(-vectors // plan["parts"] // 8) * 8 if plan["parts"] > 1 else vectors
        assert plan["threads"] * plan["each"] >= part
        assert plan["parts"] % plan["shares"] == 0
        assert plan["kernel"] == "parts apart" or plan["shares"] <= 16
        assert (plan["kernel"] == "one part") == (plan["parts"] == 1)


@every_problem
@every_card
def test_a_block_has_at_most_512_threads(problem: RowProblem, card: str) -> None:
    for n in problem.lengths():
        for rows in (1, 100000):
            plan = problem.plan(rows, n, CARDS[card])
            threads = plan["threads"] * plan["teams"]
            assert threads == 256 if plan["team"] == "lanes" else threads % 32 == 0 and threads <= 512


def test_teams_share_a_block_once_rows_have_more_threads_than_fit_a_multiprocessor() -> None:
    """Fewer rows have a block each, so that they are on more multiprocessors; lanes fill a block at any number."""
    found = 0
    for problem in ROW_PROBLEMS:
        for n in problem.lengths():
            plan = problem.plan(1, n, H100)
            teams = RULES[plan["rule"]]["teams"]
            if teams > 1:
                most = 1280 * H100[0] // plan["threads"]
                assert [problem.plan(rows, n, H100)["teams"] for rows in (most, most + 1)] == [1, teams]
                found += 1
            elif plan["team"] != "lanes":
                assert problem.plan(1 << 20, n, H100)["teams"] == 1
    assert found


@every_problem
@every_cluster
def test_a_cluster_has_the_blocks_that_the_card_allows(problem: RowProblem, clusters: int) -> None:
    for n in problem.lengths():
        for rows in (1, 33, 66, 132, 1000):
            plan = problem.plan(rows, n, with_clusters(clusters))
            if plan["kernel"] == "parts apart":
                assert plan["blocks"] == plan["shares"] == plan["parts"]
            elif plan["kernel"] == "parts by cluster":
                assert 1 < plan["blocks"] <= clusters
                assert plan["shares"] % plan["blocks"] == 0
                assert problem.read != "f64"
            else:
                assert plan["blocks"] == 1


@pytest.mark.parametrize(
    ("op", "n", "card", "kernel"),
    [
        ("rms_norm", 4096, "h100", "one part"),
        ("layer_norm", 65536, "h100", "parts by cluster"),
        ("layer_norm", 65536, "a100", "parts in turn"),
        ("layer_norm", 1 << 20, "h100", "parts in turn"),
        ("layer_norm", 65537, "h100", "parts in turn"),
        ("softmax", 128256, "h100", "parts by cluster"),
        ("softmax", 128256, "t4", "parts in turn"),
        ("likelihood", 128256, "h100", "parts in turn"),
        ("likelihood_general_backward", 128256, "a100", "parts apart"),
    ],
)
def test_what_runs(op: str, n: int, card: str, kernel: str) -> None:
    assert RowProblem(op, "bf16", "bf16").plan(4096, n, CARDS[card])["kernel"] == kernel


def test_few_rows_of_a_loss_fill_the_card_by_clusters() -> None:
    loss = RowProblem("likelihood", "bf16", "bf16")
    for rows, blocks in ((1, 8), (33, 8), (34, 4), (66, 4), (67, 2), (132, 2), (133, 1), (10000, 1)):
        found = loss.plan(rows, 128256, H100)
        assert (found["blocks"], found["shares"], found["parts"]) == (blocks, 8, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("sum", "f32", "f32"), "no row operator is called 'sum'"),
        (("norm_forward", "f32", "f32"), "no row operator is called 'norm_forward'"),
        (("rms_norm", "int8", "f32"), "dtype must be f16, bf16, f32 or f64, got 'int8'"),
    ],
)
def test_errors(given: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^\[plan\] {message}"):
        _C.plan_row(*given, 3, 5, H100)
