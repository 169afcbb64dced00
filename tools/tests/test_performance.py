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


def test_the_head_once_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four shapes of made-up times and memory, with which the page stays as short as it must be."""
    times = {"fastops": 20.0, "fastops save=none": 25.0, "eager": 40.0, "liger": 30.0, "mm": 15.0}
    shapes = ("4096x4096x32000", "8192x2048x128256", "8192x4096x128256", "16384x1024x151936")
    measured = [
        records.Record(page.HEAD, direction, "bf16", shape, "call", "generic", name, us * 1e3, None, peak, "2.13.0")
        for shape in shapes
        for direction in ("forward", "forward+backward")
        for name, us in times.items()
        for peak in (None if name == "mm" else us * 100,)
    ]
    real = page.card
    others = [r for r in real(ROOT, page.LOSSES_GPU).records if r.op != page.HEAD]
    cards = {page.LOSSES_GPU: tables.Card([*others, *measured])}
    monkeypatch.setattr(page, "card", lambda root, name: cards.get(name) or real(root, name))
    found = page.files(ROOT)
    text, picture = (found[Path("docs") / name] for name in ("performance.md", page.HEAD_PICTURE))
    assert len(text.splitlines()) <= 150
    assert "|  | fastops | products | fastops save=none | eager | liger |" in text
    for shape in shapes:
        assert f"| {shape.replace('x', '×')} | **20.0, 2.00** | 0.75 | 25.0, 2.50 | 40.0, 4.00 | 30.0, 3.00 |" in text
    assert picture.count("<circle") == len(shapes) * 4


def test_no_head_before() -> None:
    assert page.head_section(tables.Card([])) == ""


def test_only_peers_are_ahead() -> None:
    card = tables.Card([record("fastops", 10.0), record("fastops save=none", 9.0), record("mm", 5.0)])
    assert list(card.best_ratios(card.chosen())) == []


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
