"""What the page's tables need of the measurements: a lookup by key, ratios, and how numbers are spelled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastops.bench.peers import OURS, is_peer
from fastops.bench.records import Key, Record

NOTHING = "–"


class Card:
    """The measurements of one card."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self._by = {r.key: r for r in self.records}
        self.together: dict[Key, list[Record]] = {}  # all implementations of one measurement
        for r in self.records:
            self.together.setdefault(r.key[:-1], []).append(r)

    def get(self, like: Record, implementation: str) -> Record | None:
        """The same measurement of another implementation."""
        return self.at(like, implementation=implementation)

    def at(self, like: Record, **changes: Any) -> Record | None:
        """The measurement that is like this one but for these fields."""
        return self._by.get(replace(like, **changes).key)

    def chosen(self, measure: str = "call", implementation: str = OURS, **wanted: str) -> list[Record]:
        """fastops' measurements with these fields, or those of another."""
        wanted |= {"measure": measure, "implementation": implementation}
        return [r for r in self.records if all(getattr(r, name) == value for name, value in wanted.items())]

    def one(self, measure: str = "call", **wanted: str) -> Record:
        (found,) = self.chosen(measure, **wanted)
        return found

    def peers(self, ours: Record) -> list[Record]:
        return [r for r in self.together[ours.key[:-1]] if is_peer(r.implementation)]

    def best_ratios(self, ours: Sequence[Record]) -> Iterator[tuple[float, Record]]:
        """Of each measurement that a peer has too, the best peer's time over ours, and that peer's record."""
        for r in ours:
            if peers := self.peers(r):
                best = min(peers, key=lambda peer: peer.us)
                yield best.us / r.us, best


def significant(value: float, digits: int = 3) -> str:
    """``1.23``, ``12.3``, ``1234``."""
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value else 0
    return f"{value:.{places}f}"


def span(values: Iterable[float]) -> str:
    """``0.98 to 1.4``, or one of them where both are spelled alike."""
    values = list(values)
    if not values:
        return NOTHING
    least, most = (f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"


def shape(record: Record) -> str:
    return record.shape.replace("x", "×")


def named(record: Record) -> str:
    """``layer_norm` forward, bf16, 8192×4096``, for a sentence."""
    return f"`{record.op}` {record.direction}, {record.dtype}, {shape(record)}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
