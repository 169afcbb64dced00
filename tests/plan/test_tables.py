"""The norms' backward table: total, in order, one order of summation for any number of rows; and the smaller tables."""

from __future__ import annotations

from typing import Any

import pytest
from rules import PROBLEMS, Problem, every_form, rules

from fastops import _C
from fastops._plan import CARDS

every_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)
every_card = pytest.mark.parametrize("card", ["h100", "a100", "l4", "t4"])
ORDER = ("rule", "read by", "team", "threads", "each", "blocks")
ROWS = (1, 2, 64, 65, 132, 133, 500, 793, 1000, 5000, 100000, 1 << 29)
NEEDS_CLUSTERS = {"ring", "ring_long"}
RULES = rules("norm_backward")


def named(rule: dict[str, Any], problem: Problem) -> bool:
    kind = "half f32" if problem.parameter != problem.dtype else "half" if "16" in problem.dtype else problem.dtype
    return (
        problem.norm in rule["norm"] and kind in rule["dtype"] and ("no", "yes")[problem.residual] in rule["residual"]
    )


@every_card
@every_problem
def test_every_problem_has_a_rule_that_names_it(problem: Problem, card: str) -> None:
    for n in problem.lengths():
        plan = problem.plan(7, n, CARDS[card])
        assert plan["rule"] >= 0
        rule = RULES[plan["rule"]]
        assert named(rule, problem)
        assert plan["read by"] == rule["read by"]


@every_card
@every_problem
def test_longer_rows_come_to_later_rules(problem: Problem, card: str) -> None:
    """Rules that take some multiples alone are left out."""
    size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}[problem.dtype]
    for kind in (16, 8, 1):
        last = -1
        for n in problem.lengths():
            width = 16 if n * size % 16 == 0 else 8 if size == 2 and n * size % 8 == 0 else 1
            number = problem.plan(7, n, CARDS[card])["rule"]
            if width != kind:
                continue
            assert number >= last
            last = number


@every_card
@every_problem
def test_the_order_of_summation_does_not_depend_on_the_number_of_rows(problem: Problem, card: str) -> None:
    for n in problem.lengths():
        orders = {tuple(problem.plan(rows, n, CARDS[card])[key] for key in ORDER) for rows in ROWS}
        assert len(orders) == 1


def test_every_form_runs_on_some_card() -> None:
    """No rule or schedule is there that no problem comes to."""
    missing = {
        (rule, number)
        for rule, of in enumerate(RULES)
        for number, schedule in enumerate(of["schedules"])
        if all(
            schedule["for"].values()
        )  # a list of schedules may be another rule's too, with problems that this has not
    }
    for card in CARDS:
        missing -= {(rule, schedule) for _, rule, schedule, _, _ in every_form(card)}
    assert missing == set()


@every_problem
def test_cards_without_clusters_get_none(problem: Problem) -> None:
    for n in problem.lengths():
        for rows in ROWS:
            assert problem.plan(rows, n, CARDS["a100"])["form"]["kernel"] not in NEEDS_CLUSTERS


@every_problem
def test_a_cluster_has_at_most_the_blocks_that_the_card_allows(problem: Problem) -> None:
    for most in (1, 2, 4, 8, 16):
        card = (*CARDS["h100"][:4], most)
        for n in problem.lengths():
            plan = problem.plan(1000, n, card)
            assert plan["form"]["kernel"] not in NEEDS_CLUSTERS or plan["blocks"] <= most


@every_problem
def test_a_ring_has_two_stages_and_the_room_for_them(problem: Problem) -> None:
    for block_bytes in (49152, 101376, 166912, 232448):
        card = (*CARDS["h100"][:3], block_bytes, 16)
        for n in problem.lengths():
            plan = problem.plan(1000, n, card)
            if plan["form"]["kernel"] in {"ring", "ring_long"}:
                assert plan["stages"] >= 2
                assert plan["shared bytes"] <= block_bytes


LAYER = Problem("layer", "bf16", "bf16", False)


@pytest.mark.parametrize(
    ("rows", "n", "card", "kernel"),
    [
        (8192, 4096, "h100", "ring"),
        (64, 4096, "h100", "single_wave"),
        (1024, 65536, "h100", "ring_long"),
        (1024, 65536, "t4", "long_row"),
    ],
)
def test_what_runs(rows: int, n: int, card: str, kernel: str) -> None:
    assert LAYER.plan(rows, n, CARDS[card])["form"]["kernel"] == kernel


def test_rows_that_are_not_counted_in_32_bits_have_a_backward() -> None:
    assert LAYER.plan((1 << 30) + 1, 8, CARDS["h100"])["form"]["kernel"] == "long_row"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("layers", "f32", "f32"), "norm must be layer or rms, got 'layers'"),
        (("layer", "int8", "f32"), "dtype must be f16, bf16, f32 or f64, got 'int8'"),
        (("layer", "f32", "bf16"), "parameters must be of the row's dtype, or f32 beside a half type"),
    ],
)
def test_errors(given: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _C.plan_norm_backward(*given, False, 3, 4, CARDS["h100"])


# ---- the other tables ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rows", "features", "outputs", "library"),
    [
        ("bf16", 1000, 768, 1024, False),
        ("bf16", 1000, 768, 1023, True),
        ("bf16", 1000, 300, 1024, True),
        ("f32", 1, 96, 96, False),
        ("f32", 2, 1024, 1, True),
        ("f32", 16, 1024, 1024, True),
        ("f32", 17, 1024, 1024, False),
        ("f32", 16, 1025, 1024, False),
        ("f32", 11, 4096, 128, True),
        ("f32", 11, 4096, 127, False),
        ("f32", 12, 4096, 128, False),
        ("f32", 5, 4096, 128, True),
        ("f32", 11, 4097, 128, False),
        ("f32", 4, 4096, 128, False),
        ("f32", 512, 511, 64, True),
        ("f32", 512, 512, 64, False),
        ("f32", 511, 511, 64, False),
        ("f32", 512, 511, 63, False),
        ("f32", 2048, 4096, 1024, True),
        ("f32", 2047, 4096, 1024, False),
        ("f64", 16, 64, 64, False),
    ],
)
def test_who_adds_the_bias(dtype: str, rows: int, features: int, outputs: int, library: bool) -> None:
    size = {"bf16": 2, "f32": 4, "f64": 8}[dtype]
    assert _C.library_adds_bias(size, rows, features, outputs) is library


@pytest.mark.parametrize(
    ("rows", "n", "bias", "aligned", "kernel"),
    [
        (8192, 4096, False, True, "pointwise"),
        (8192, 4096, True, True, "vector"),
        (1000, 1024, True, True, "vector"),
        (4096, 770, True, True, "across"),
        (4096, 769, True, True, "across"),
        (64, 1024, True, True, "word"),
        (64, 1023, True, True, "element"),
        (8192, 4096, True, False, "element"),
    ],
)
def test_epilogue(rows: int, n: int, bias: bool, aligned: bool, kernel: str) -> None:
    number = _C.plan_epilogue(False, "bf16", rows, n, bias, aligned, CARDS["h100"])
    assert _C.plan_rules()["linear_forward"][number]["kernel"] == kernel


@pytest.mark.parametrize(
    ("rows", "n", "aligned", "kernel"),
    [
        (8192, 4096, True, "vector"),
        (64, 1024, True, "word"),
        (64, 1023, True, "element"),
        (8192, 4096, False, "element"),
    ],
)
def test_epilogue_backward(rows: int, n: int, aligned: bool, kernel: str) -> None:
    number = _C.plan_epilogue(True, "bf16", rows, n, True, aligned, CARDS["h100"])
    assert _C.plan_rules()["linear_backward"][number]["kernel"] == kernel


@pytest.mark.parametrize(
    ("layout", "aligned", "of", "elements", "kernel"),
    [
        ("one run", True, "any", 4097, "vector"),
        ("one run", True, "gated", 4097, "vector"),
        ("one run", True, "any", 4096, "element"),
        ("one run", False, "any", 4097, "element"),
        ("one run", False, "gated", 4097, "row_vector"),
        ("one run", False, "gated", 0, "element"),
        ("rows", True, "any", 4097, "vector"),
        ("rows", False, "any", 4097, "element"),
        ("rows", True, "gated", 4097, "row_vector"),
        ("rows", False, "gated", 4096, "element"),
        ("rows", False, "numbered", 1, "row_vector"),
        ("strided", True, "gated", 1 << 40, "element"),
    ],
)
def test_elementwise(layout: str, aligned: bool, of: str, elements: int, kernel: str) -> None:
    number = _C.plan_pointwise(layout, aligned, of, elements)
    assert _C.plan_rules()["pointwise"][number]["kernel"] == kernel


@pytest.mark.parametrize(
    ("rows", "n", "chunks"),
    [
        (1, 1, 1),
        (63, 1, 1),
        (64, 1, 2),
        (64, 100000, 8),
        (4095, 1, 64),
        (4096, 1, 64),
        (20000, 1, 256),
        (1000000, 1, 256),
    ],
)
def test_chunks_on_the_cpu(rows: int, n: int, chunks: int) -> None:
    """64 rows each where there are many, else 32, or what is worth a thread but at least 8."""
    assert _C.plan_cpu("f32", rows, n, 1)["chunks"] == chunks


@pytest.mark.parametrize("given", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1 << 41, 1, 1), (1 << 30, 1 << 30, 1)])
def test_sizes_that_there_are_not(given: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"^\[plan\] "):
        _C.plan_cpu("f32", *given)


def test_few_long_rows_share_segments_on_the_cpu() -> None:
    assert _C.plan_cpu("f32", 1, 1 << 20, 8)["shares segments"]
    assert not _C.plan_cpu("f32", 1, 1 << 20, 1)["shares segments"]
    assert not _C.plan_cpu("f32", 1000, 1 << 20, 8)["shares segments"]
    assert _C.plan_cpu("bf16", 1 << 14, 4096, 8)["streams"]
    assert not _C.plan_cpu("bf16", 1 << 12, 4096, 8)["streams"]
