"""The sample of a test's cases: each value, each pair, few cases, the same ones each time."""

from __future__ import annotations

import itertools

import pytest
from sampling import sample

SIZES = {"a": 5, "b": 4, "c": 3, "d": 2}
PRODUCT = [dict(zip(SIZES, values, strict=True)) for values in itertools.product(*map(range, SIZES.values()))]


def pairs(cases: list[dict[str, int]], first: str, second: str) -> set[tuple[int, int]]:
    return {(case[first], case[second]) for case in cases}


@pytest.mark.parametrize("seed", ["one", "another"])
def test_every_pair(seed: str) -> None:
    kept = [PRODUCT[k] for k in sample(PRODUCT, seed)]
    for first, second in itertools.combinations(SIZES, 2):
        assert pairs(kept, first, second) == pairs(PRODUCT, first, second)
    assert len(kept) <= 30 < len(PRODUCT)


def test_every_value_without_pairs() -> None:
    kept = [PRODUCT[k] for k in sample(PRODUCT, "seed", pairs=False)]
    for name, size in SIZES.items():
        assert {case[name] for case in kept} == set(range(size))
    assert len(kept) == 5


def test_the_same_ones_in_order() -> None:
    kept = sample(PRODUCT, "seed")
    assert kept == sample(PRODUCT, "seed") == sorted(kept)
    assert kept != sample(PRODUCT, "another seed")


def test_of_two_parameters_all() -> None:
    cases = [{"a": a, "b": b} for a in range(7) for b in range(9)]
    assert sample(cases, "seed") == list(range(63))
    assert sample([{}], "seed") == [0]
