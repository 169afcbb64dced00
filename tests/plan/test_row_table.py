"""The row engine's table: total, in order, and one order of summation on every card and for any number of rows."""

from __future__ import annotations

from typing import Any

import pytest

from fastops import _C
from fastops._plan import CARDS

OPS = ("softmax", "softmax_backward", "likelihood", "likelihood_backward")
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
# What is read and what is written by the forward; by the backward the other way round.
TYPES = (("bf16", "bf16"), ("f16", "f16"), ("bf16", "f32"), ("f16", "f32"), ("f32", "f32"), ("f64", "f64"))
ORDER = ("rule", "team", "threads", "each", "parts", "shares")

every_op = pytest.mark.parametrize("op", OPS)
every_type = pytest.mark.parametrize("types", TYPES, ids="-".join)


def plan(op: str, types: tuple[str, str], rows: int, n: int, card: str = "h100", clusters: int | None = None) -> Any:
    read, written = reversed(types) if op.endswith("backward") else types
    facts = CARDS[card] if clusters is None else (*CARDS[card][:4], clusters)
    return _C.plan_row(op, read, written, rows, n, facts)


def lengths(types: tuple[str, str]) -> list[int]:
    """At, and on both sides of, the bound of every rule, and of the parts of long rows."""
    width = 16 // max(SIZES[t] for t in types)
    found = {1, 2, 3}
    for rule in _C.plan_rules()["row"]:
        units = rule["up to"] if rule["up to"] < 2**40 else 5 * rule["threads"] * rule["each"]
        found |= {units * width + d for d in (-width, -1, 0, 1, width)}
    return sorted(n for n in found if n > 0)


@every_op
@every_type
def test_a_longer_row_comes_to_a_later_rule(op: str, types: tuple[str, str]) -> None:
    numbers = [plan(op, types, 7, n)["rule"] for n in lengths(types)]
    assert numbers == sorted(numbers)
    assert set(numbers) == {k for k, rule in enumerate(_C.plan_rules()["row"]) if op in rule["op"]}


@every_op
@every_type
def test_the_order_of_summation_depends_on_the_row_alone(op: str, types: tuple[str, str]) -> None:
    for n in lengths(types):
        found = {
            tuple(plan(op, types, rows, n, card)[key] for key in ORDER)
            for rows in (1, 2, 65, 133, 1000, 100000)
            for card in CARDS
        }
        assert len(found) == 1


@every_op
@every_type
def test_each_element_has_a_thread(op: str, types: tuple[str, str]) -> None:
    width = 16 // max(SIZES[t] for t in types)
    for n in lengths(types):
        found = plan(op, types, 7, n)
        part = -(-n // (width * found["parts"]))
        assert found["threads"] * found["each"] >= part
        assert found["threads"] <= 512
        assert found["teams"] == 1 or found["threads"] * found["teams"] == 256


@every_op
@every_type
@pytest.mark.parametrize("clusters", [0, 1, 2, 4, 8, 16])
def test_a_cluster_has_the_blocks_that_the_card_allows(op: str, types: tuple[str, str], clusters: int) -> None:
    for n in (100, 16384, 20000, 65536, 131072, 300000, 1 << 20):
        for rows in (1, 33, 66, 132, 1000):
            found = plan(op, types, rows, n, clusters=clusters)
            assert found["shares"] % found["blocks"] == 0
            if found["kernel"] == "parts by cluster":
                assert 1 < found["blocks"] <= clusters
                assert found["shares"] <= 16
                assert "f64" not in types
            elif op.startswith("softmax") and "f64" not in types:
                assert found["parts"] == 1 or found["parts"] > clusters


def test_few_rows_of_a_loss_fill_the_card_by_clusters() -> None:
    for rows, blocks in ((1, 8), (33, 8), (34, 4), (66, 4), (67, 2), (132, 2), (133, 1), (10000, 1)):
        found = plan("likelihood", ("bf16", "bf16"), rows, 128256)
        assert (found["blocks"], found["shares"], found["parts"]) == (blocks, 8, 8)


def test_an_operator_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"^\[plan\] no row operator is called 'sum'"):
        _C.plan_row("sum", "f32", "f32", 3, 5, CARDS["h100"])
