"""What is generated of speed is what benchmarks/results/*.csv gives; all of these are small."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fastops.bench import records
from fastops.bench.model.architectures import ARCHITECTURES
from fastops.bench.model.implementations import IMPLEMENTATIONS

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "performance"))

import page  # noqa: E402
import prose  # noqa: E402
import tables  # noqa: E402
import whole_models  # noqa: E402

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


@pytest.fixture
def unmeasured(tmp_path: Path) -> Path:
    """README.md and the CSV files without lines of models, in a folder of their own."""
    shutil.copy(ROOT / "README.md", tmp_path)
    folder = tmp_path / "benchmarks/results"
    folder.mkdir(parents=True)
    for file in RESULTS:
        of_ops = [r for r in records.read(file) if r.measure not in whole_models.MEASURES]
        (folder / file.name).write_text(records.text(of_ops), encoding="utf-8")
    return tmp_path


def steps(arch: str, times: dict[str, float], shape: str = "8x2048x4x2048") -> list[records.Record]:
    """Made up of the milliseconds of training steps: a forward takes a tenth, the first a hundred times as long."""
    measured = []
    for name, ms in times.items():
        step = records.Record(arch, "training step", "bf16", shape, "model", "generic", name, ms * 1e3, None, ms * 250)
        first = replace(step, measure="start", us=ms * 1e5, peak_mb=None)
        measured += [step, replace(step, direction="forward", us=ms * 1e2), first]
    return [replace(r, torch="2.13.0") for r in measured]


def put(measured: list[records.Record], root: Path, card: str) -> dict[Path, str]:
    records.put({r.key: r for r in measured}, str(root / f"benchmarks/results/{card}.csv"))
    return page.files(root)


def test_no_models_before(unmeasured: Path) -> None:
    found = page.files(unmeasured)
    assert f"{whole_models.BEGIN}\n{whole_models.END}\n" in found[whole_models.README]
    assert not any("models" in path.name for path in found)
    assert "models.md" not in found[Path("docs/performance.md")]


def test_models_once_they_are_measured(unmeasured: Path) -> None:
    before = page.files(unmeasured)
    times = {"fastops": 64.0, "fastops+compile": 80.0, "eager": 128.0, "compile": 80.0, "liger": 100.0}
    vit = {"eager": 64.0, "fastops": 50.0}
    found = put([*steps("vit", vit, "12x768x64x197"), *steps("llama", times)], unmeasured, "h100")
    lines = found[whole_models.PAGE].splitlines()
    assert "## One H100, PyTorch 2.13.0" in lines
    assert lines[lines.index("| --- | --- | --- | --- | --- | --- | --- |") + 1 :] == [
        "| `LlamaForCausalLM`, bf16, 8×2048×4×2048 | fastops | **128** | 1.25 | 16.0 | 6.40 | **1280** |",
        "|  | fastops+compile | 102 | 1.00 | 20.0 | 8.00 | 1024 |",
        "|  | eager | 64.0 | 0.62 | 32.0 | 12.8 | 640 |",
        "|  | compile | 102 | 1.00 | 20.0 | 8.00 | 1024 |",
        "|  | liger | 81.9 | 0.80 | 25.0 | 10.0 | 819 |",
        "| `ViTForImageClassification`, bf16, 12×768×64×197 | fastops | **252** | 1.28 | 12.5 | 5.00 | **2522** |",
        "|  | eager | 197 | 1.00 | 16.0 | 6.40 | 1970 |",
    ]
    readme = found[whole_models.README]
    assert "on one H100, PyTorch 2.13.0:" in readme
    assert "|  | fastops | fastops+compile | eager | compile | liger | fastops over the best other |" in readme
    llama = "**128**, 16.0 | 102, 20.0 | 64.0, 32.0 | 102, 20.0 | 81.9, 25.0 | 1.25"
    assert f"| `LlamaForCausalLM`, bf16, 8×2048×4×2048 | {llama} |" in readme
    assert "12×768×64×197 | **252**, 12.5 | – | 197, 16.0 | – | – | 1.28 |" in readme
    picture = Path("docs/models-h100.svg")
    says = "![Time and peak memory of a training step of LlamaForCausalLM: a panel for each model, a point"
    assert f"{says} for each implementation]({picture})" in readme
    assert f"({picture.name})" in found[whole_models.PAGE]
    assert found[picture].count("<circle") == len(times), "vit is in the tables alone"
    (unmeasured / whole_models.README).write_text(readme, encoding="utf-8")
    assert page.files(unmeasured) == found, "the same again"
    assert whole_models.with_part(readme, "") == before[whole_models.README]


def test_models_of_several_cards(unmeasured: Path) -> None:
    """Every model by every implementation: pages as short as they must be."""
    performance = Path("docs/performance.md")
    before = page.files(unmeasured)[performance]
    times = dict.fromkeys(IMPLEMENTATIONS, 50.0)
    put([r for arch in ARCHITECTURES for r in steps(arch, times)], unmeasured, "h200")
    found = put(steps("gpt2", {"fastops": 64.0}, "12x768x8x1024"), unmeasured, "h100")
    text = found[whole_models.PAGE]
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        f"## One {card}, PyTorch 2.13.0" for card in ("H100", "H200")
    ]
    assert "| fastops | **128** | – | 16.0 | 6.40 | **1280** |" in text, "without another"
    assert text.index("Llama") < text.index("Qwen3") < text.index("Gemma2") < text.index("Bert"), "the benchmark's"
    assert Path("docs/models-h200.svg") in found
    assert Path("docs/models-h100.svg") not in found
    assert "models-h100.svg" not in text + found[whole_models.README]
    assert all(len(found[path].splitlines()) <= 150 for path in (whole_models.PAGE, performance))
    assert found[performance].count(whole_models.LINK) == 1
    assert found[performance].replace(whole_models.LINK, "") == before, "its numbers are of operators alone"


@pytest.mark.parametrize("page", [whole_models.README, whole_models.PAGE], ids=str)
def test_what_is_said_of_the_picture_of_models(page: Path) -> None:
    """A page names the models that have a panel, and no other model of its table."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(r"!\[([^]]*training step[^]]*)\]\(([^)]*)\)", text)
    assert found
    said, path = found.groups()
    panels = re.findall(r">(\w+) training step,", (ROOT / page.parent / path).read_text(encoding="utf-8"))
    assert panels
    for arch, architecture in ARCHITECTURES.items():
        assert (architecture.model in said) == (arch in panels), architecture.model


def test_readme_without_its_comments() -> None:
    with pytest.raises(ValueError, match=r"README.md must have the comments"):
        whole_models.with_part(f"# fastops\n\n{whole_models.BEGIN}\n", "")


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
    assert prose.listed(["a", "b", "c"]) == "a, b and c"


def test_copy_bandwidth() -> None:
    """A copy of 2·8192·4096 halves in 32 us, of which the kernel reaches half."""
    ours = records.Record("square", "forward", "bf16", "8192x4096", "call", "generic", "fastops", 64.0, 0.5)
    assert page.copy_bandwidth(tables.Card([ours]), "square") == pytest.approx(2 * 2 * 8192 * 4096 / 32e-6)
