"""docs/performance.md and its picture are what benchmarks/results/*.csv gives; all of these are small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fastops.bench import records

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "performance"))

import page  # noqa: E402
import tables  # noqa: E402

RESULTS = sorted((ROOT / "benchmarks/results").glob("*"))


def record(implementation: str, us: float, shape: str = "8x16", **fields: str) -> records.Record:
    key = {"op": "relu", "direction": "forward", "dtype": "f32", "measure": "call", "level": "avx2"} | fields
    return records.Record(shape=shape, implementation=implementation, us=us, **key)


@pytest.mark.parametrize("path", page.files(ROOT), ids=str)
def test_generated(path: Path) -> None:
    same = (ROOT / path).read_text(encoding="utf-8") == page.files(ROOT)[path]
    assert same, f"{path} is not what the CSV files give: run `make performance`"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.name)
def test_csv(file: Path) -> None:
    """As the benchmark writes it: sorted, a line a key, numbers as short as they are measured."""
    found = records.read(file)
    assert file.read_text(encoding="utf-8") == records.text(found)
    assert len({r.key for r in found}) == len(found)


def test_sizes() -> None:
    assert sum(file.stat().st_size for file in RESULTS) <= 400_000
    assert all(len(text.encode()) <= 60_000 for path, text in page.files(ROOT).items() if path.suffix == ".svg")
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "docs/kernels").glob("*.md")}
    assert len((ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()) <= 150
    assert lines
    assert {path.name: count for path, count in lines.items() if count > 100} == {}


def test_best_ratios() -> None:
    card = tables.Card(
        [
            record("fastops", 10.0),
            record("eager", 12.0),
            record("compile", 9.0),
            record("fastops", 1.0, "8x32"),  # without a peer
            record("eager", 5.0, level="avx512"),  # without ours
        ]
    )
    assert [(ratio, peer.implementation) for ratio, peer in card.best_ratios(card.chosen())] == [(0.9, "compile")]
    assert card.one(shape="8x32").us == 1.0


def test_spelling() -> None:
    assert [tables.significant(x) for x in (0.04567, 9.996, 33.81, 394.2, 7213.0)] == [
        "0.0457",
        "10.00",
        "33.8",
        "394",
        "7213",
    ]
    assert tables.span([1.304, 0.98, 12.4]) == "0.98 to 12"
    assert tables.span([1.001, 0.999]) == "1.00"
    assert tables.span([]) == tables.NOTHING
    assert tables.table(["", "a"], [["b", "c"]]) == "|  | a |\n| --- | --- |\n| b | c |"
    assert page.listed(["a", "b", "c"]) == "a, b and c"


def test_copy_bandwidth() -> None:
    """A copy of 2·8192·4096 halves in 32 us, of which the kernel reaches half."""
    ours = records.Record("square", "forward", "bf16", "8192x4096", "call", "generic", "fastops", 64.0, 0.5)
    assert page.copy_bandwidth(tables.Card([ours]), "square") == pytest.approx(2 * 2 * 8192 * 4096 / 32e-6)
