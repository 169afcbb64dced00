"""What was measured of a model: the rows of the JSON file, and the lines of a card's CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import files
from ..problems import spelled
from ..records import Key, Record, level_of
from .architectures import ARCHITECTURES

FORMAT = "fastops.bench model 1"
PASSES = {"step": "training step", "forward": "forward"}  # in a row, and as the direction of a line
STEADY, START = "model", "start"  # measures of lines: one pass, and the first training step with all before it

Row = dict[str, Any]


def read(sources: Sequence[str]) -> files.Content:
    """Of one machine and as many steps, as if they had been one run."""
    contents = [files.load(file, FORMAT, "python -m fastops.bench model --json") for file in sources]
    return files.merged(contents, same=("environment", "versions", "steps"), results=("results",))


def records_of(content: Mapping[str, Any]) -> dict[Key, Record | None]:
    """By key; None: refused. The shape is layers, hidden size, batch and tokens."""
    found: dict[Key, Record | None] = {}

    def add(r: Row, direction: str, measure: str, us: float | None, peak: int | None) -> None:
        record = Record(
            r["arch"],
            direction,
            r["dtype"],
            spelled(ARCHITECTURES[r["arch"]].sizes[r["size"]].shape),
            measure,
            level_of(content, r["device"]),
            r["implementation"],
            us or 0.0,  # a refusal's is not kept
            peak_mb=None if peak is None else peak / 1e6,
            torch=content["environment"]["versions"]["torch"],
            commit=content["environment"]["capabilities"]["build"]["git_commit"],
        )
        found[record.key] = None if us is None else record

    for r in content["results"]:
        refused = bool(r.get("refused"))
        for key, direction in PASSES.items():
            one = {"microseconds": None, "peak_bytes": None} if refused else r[key]
            add(r, direction, STEADY, one["microseconds"], one["peak_bytes"])
        add(r, PASSES["step"], START, None if refused else 1e6 * r["first_seconds"], None)
    return found


def tokens_a_second(r: Row, key: str) -> float:
    size = ARCHITECTURES[r["arch"]].sizes[r["size"]]
    return float(size.batch * size.tokens / (r[key]["microseconds"] * 1e-6))


def off(r: Row, reference: Row) -> float:
    """The largest relative distance of the losses to another implementation's."""
    pairs = zip(r["losses"], reference["losses"], strict=True)
    return max(abs(a - b) / abs(b) if a == a else float("inf") for a, b in pairs)
