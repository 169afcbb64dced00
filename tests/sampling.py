"""A sample of a test's cases that has each value of each parameter, and each pair of values of two.

A fault hangs on one or two parameters far more often than on three, and of a product of three or more a part has every
pair. Of two parameters all cases are kept. The sample is the same in each run, so that what fails in one fails in the
next. Where a case takes long, ``@pytest.mark.sample(pairs=False)`` asks for the values alone.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import pytest

Case = Mapping[str, Hashable]


def sample(cases: Sequence[Case], seed: str, *, pairs: bool = True) -> list[int]:
    """Which of the cases to keep, in order: always the one that covers most of what is left."""
    needs: list[set[object]] = [set(case.items()) for case in cases]
    if pairs:
        for case, need in zip(cases, needs, strict=True):
            need.update(itertools.combinations(sorted(case.items(), key=lambda item: item[0]), 2))
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    covered: set[object] = set()
    kept = []
    # What a case adds only falls, so that a number that has not changed is the largest.
    heap = [(-len(needs[k]), place, k) for place, k in enumerate(order)]
    heapq.heapify(heap)
    while heap:
        claimed, place, k = heapq.heappop(heap)
        added = len(needs[k] - covered)
        if added == -claimed:
            kept.append(k)
            covered |= needs[k]
        elif added:
            heapq.heappush(heap, (-added, place, k))
    return sorted(kept)


def parameters(item: pytest.Item) -> Case:
    """By identity: values of one list are the same objects in each case, and some have no hash."""
    callspec = getattr(item, "callspec", None)
    return {name: id(value) for name, value in callspec.params.items()} if callspec else {}


def sampled(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Those to run. Each device has a sample of its own: on a machine without a GPU none stands for the CPU's."""
    tests: defaultdict[tuple[str, Hashable], list[pytest.Item]] = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0], parameters(item).get("device")].append(item)
    kept: set[pytest.Item] = set()
    for (test, _), of in tests.items():
        mark = of[0].get_closest_marker("sample")
        pairs = mark is None or mark.kwargs["pairs"]
        kept.update(of[k] for k in sample([parameters(item) for item in of], test, pairs=pairs))
    return kept
