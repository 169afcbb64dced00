"""The benchmark of whole models: what it builds, measures, writes and refuses. No test asserts a time."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench_content
import pytest
import torch

from fastops.bench import fresh, memory, records
from fastops.bench.__main__ import main
from fastops.bench.model import child, command, results
from fastops.bench.model.architectures import ARCHITECTURES, batch_of, build
from fastops.bench.model.implementations import IMPLEMENTATIONS

pytest.importorskip("transformers", reason="transformers is not installed")

CPU = torch.device("cpu")
every_arch = pytest.mark.parametrize("arch", ARCHITECTURES)
PASS = {"microseconds": 2000.0, "low": 1900.0, "high": 2100.0, "peak_bytes": 3_000_000}


def answer(implementation: str, **changes: Any) -> dict[str, Any]:
    """As a process gives it."""
    losses = [6.25, 6.0]
    found = {"parameters": 1000, "first_seconds": 0.5, "losses": losses, "swapped": None, "left": None}
    return found | {"step": PASS, "forward": PASS | {"microseconds": 500.0, "peak_bytes": None}} | changes


# What is timed


@every_arch
def test_each_size_of_an_architecture(arch: str) -> None:
    for name, size in ARCHITECTURES[arch].sizes.items():
        device = CPU if name == "tiny" else torch.device("meta")
        model = build(arch, size, device, torch.bfloat16)
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        assert sum(p.numel() for p in model.parameters()) > size.layers * 4 * size.hidden * size.hidden / 2
        assert not any(m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)), "losses are compared"
        if device == CPU:
            assert model(**batch_of(arch, size, device, torch.bfloat16)).loss.isfinite()


def test_the_same_numbers_each_time() -> None:
    size = ARCHITECTURES["llama"].sizes["tiny"]
    one, other = (build("llama", size, CPU, torch.float32).state_dict() for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert torch.get_default_dtype() is torch.float32
    one, other = (batch_of("llama", size, CPU, torch.float32) for _ in range(2))
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("arch", ["llama", "bert"])
def test_measured(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """fastops' losses are eager's, and are those of a model that learns."""
    monkeypatch.setattr(child, "ROUNDS", 2)
    monkeypatch.setitem(child.AT_LEAST, "cpu", 0.0)
    request = {"arch": arch, "size": "tiny", "dtype": "float32", "device": "cpu", "steps": 3}
    eager, ours = (child._measured(request | {"implementation": name}, 1e4) for name in ("eager", "fastops"))
    assert len(eager["losses"]) == 3
    assert eager["losses"] == sorted(eager["losses"], reverse=True)
    assert results.off(ours, eager) < 1e-5
    assert eager["swapped"] is None
    assert any("norm" in what for what in ours["swapped"].values())
    assert any("linear_cross_entropy" in what for what in ours["swapped"].values()), "of masked models too"
    assert 0 < eager["first_seconds"] < 1e4 < ours["first_seconds"], "the time for the import of fastops is its own"
    for found in (eager, ours):
        assert found["parameters"] == eager["parameters"]
        for one in (found["step"], found["forward"]):
            assert 0 < one["low"] <= one["microseconds"] <= one["high"]
        assert found["forward"]["peak_bytes"] is None
        assert (found["step"]["peak_bytes"] is None) == (memory.resident_peak() is None)


def test_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / name for name in ("model.json", "card.csv", "model.svg")]
    options = [f"--{option}={file}" for option, file in zip(("json", "csv", "plot"), outputs, strict=True)]
    assert main(["model", "--arch=gpt2", "--peers=eager,liger", "--device=cpu", "--steps=2", *options]) == 0
    content = json.loads(outputs[0].read_text())
    eager, liger = content["results"]
    assert {key: eager[key] for key in ("arch", "size", "dtype", "device", "implementation")} == {
        "arch": "gpt2",
        "size": "tiny",
        "dtype": "f32",
        "device": "cpu",
        "implementation": "eager",
    }
    assert "not installed" in liger["refused"] or liger["refused"] == "needs a GPU"
    assert content["versions"]["torch"] == torch.__version__
    lines = {(r.direction, r.measure): r for r in records.read(outputs[1])}
    assert set(lines) == {("training step", "model"), ("forward", "model"), ("training step", "start")}
    assert lines["training step", "model"].us == pytest.approx(eager["step"]["microseconds"], rel=1e-4)
    assert lines["training step", "start"].us == pytest.approx(1e6 * eager["first_seconds"], rel=1e-4)
    assert "peak memory, MB" in outputs[2].read_text() or memory.resident_peak() is None
    said = capsys.readouterr().out
    assert "gpt2 tiny, f32, cpu: 2 layers of 64, vocabulary 512" in said
    assert "liger refused gpt2" in said


# What is made of it


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What a process answers, by implementation, in place of one."""
    found = {name: answer(name) for name in IMPLEMENTATIONS}
    monkeypatch.setattr(fresh, "answer", lambda program, arguments, *rest, **more: _of(found, arguments))
    return found


def _of(found: dict[str, dict[str, Any]], arguments: tuple[str, str]) -> dict[str, Any]:
    return found[json.loads(arguments[1])["implementation"]]


def run(*options: str, archs: Sequence[str] = ("llama",)) -> int:
    chosen = [f"--arch={arch}" for arch in archs]
    return main(["model", *chosen, "--device=cpu", "--peers=eager,compile,fastops", "--steps=2", *options])


def test_lines_of_a_card(answers: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "card.csv"
    assert run(f"--csv={file}") == 0
    (step,) = [r for r in records.read(file) if (r.implementation, r.direction) == ("fastops", "training step")][:1]
    assert (step.op, step.dtype, step.shape, step.measure) == ("llama", "f32", "2x64x2x32", "model")
    assert (step.us, step.peak_mb, step.share_of_copy) == (2000.0, 3.0, None)
    assert len(records.read(file)) == 9
    answers["compile"] = {"refused": "RuntimeError: out of memory"}
    assert run(f"--csv={file}") == 0
    assert {r.implementation for r in records.read(file)} == {"eager", "fastops"}, "refused now"


def test_table(answers: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    answers["fastops"] = answer("fastops", step=PASS | {"microseconds": 1000.0}, losses=[6.25, 6.0006])
    assert run() == 0
    rows = {cells[0]: cells[1:] for line in capsys.readouterr().out.splitlines() if (cells := line.split())}
    assert rows["eager"] == ["32000", "0.50", "10%", "0.00", "0.50", "128000", "-", "6.2500", "6.0000", "-"]
    assert rows["fastops"] == ["64000", "1.00", "20%", "0.00", "0.50", "128000", "-", "6.2500", "6.0006", "1.0e-04"]


@pytest.mark.parametrize(("refusing", "status"), [("fastops", 1), ("compile", 0)])
def test_status(refusing: str, status: int, answers: dict[str, dict[str, Any]]) -> None:
    answers[refusing] = {"refused": "it does not"}
    assert run() == status


def test_losses_that_are_nan_are_far_off() -> None:
    assert results.off({"losses": [1.0, math.nan]}, {"losses": [1.0, 1.0]}) == math.inf
    assert results.off({"losses": [1.0, 1.5]}, {"losses": [1.0, 1.0]}) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arch=t5"], "arch must be some of llama, qwen3, gemma2, gpt2, bert, vit, got 't5'"),
        (["--arch=bert", "--size=8layers"], "size of bert must be one of base, tiny, got '8layers'"),
        (["--peers=eager,apex"], "peers must be some of eager, compile, liger, fastops, fastops+compile, got 'apex'"),
        (["--device=all"], "device must be cpu, cuda or cuda:<index>, got 'all'"),
        (["--dtype=int8"], "dtype must be one of"),
        (["--steps=0"], "steps must be at least 1, got 0"),
        (["--plot=picture.png"], "--plot must end in .svg, got 'picture.png'"),
        (["--csv=no/such/card.csv"], "no/such/card.csv: there is no folder no/such"),
    ],
)
def test_what_is_not_there(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--device=cpu", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_process_that_dies_is_refused() -> None:
    assert fresh.answer("import sys; sys.exit('why')", (), ".", 60) == {"refused": "why"}
    assert fresh.answer("import time; time.sleep(60)", (), ".", 0.1) == {"refused": "no result within 0.1 s"}


# From files


@pytest.fixture
def saved(answers: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Path]:
    """A file an architecture, and what is printed, written and drawn of both in one run."""
    answers["compile"] = {"refused": "RuntimeError: out of memory"}
    found = {name: tmp_path / f"{name}.json" for name in ("llama", "vit", "both")}
    for name in ("llama", "vit"):
        assert run(f"--json={found[name]}", archs=[name]) == 0
    found |= {name: tmp_path / f"both.{name}" for name in ("csv", "svg", "txt")}
    capsys.readouterr()
    outputs = [f"--json={found['both']}", f"--csv={found['csv']}", f"--plot={found['svg']}"]
    assert run(*outputs, archs=["llama", "vit"]) == 0
    found["txt"].write_text(capsys.readouterr().out)
    return found


def test_from_several_files(
    saved: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Table, lines and picture are those of one run, and nothing is measured."""
    monkeypatch.setattr(command, "measure", None)
    sources = [str(saved[name]) for name in ("llama", "vit")]
    outputs = {name: tmp_path / f"again.{name}" for name in ("json", "csv", "svg")}
    options = [f"--{name}={outputs[kind]}" for name, kind in (("json", "json"), ("csv", "csv"), ("plot", "svg"))]
    assert main(["model", "--from", *sources, *options]) == 0
    assert capsys.readouterr().out == saved["txt"].read_text()
    assert outputs["csv"].read_bytes() == saved["csv"].read_bytes()
    assert outputs["svg"].read_bytes() == saved["svg"].read_bytes()
    both = json.loads(saved["both"].read_text())
    assert json.loads(outputs["json"].read_text())["results"] == both["results"]


def test_from_a_part_of_a_file(saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "part.csv"
    options = ["--arch=vit", "--peers=eager,compile", f"--csv={file}"]
    assert main(["model", "--from", str(saved["both"]), *options]) == 0
    assert {(r.op, r.implementation) for r in records.read(file)} == {("vit", "eager")}
    said = capsys.readouterr().out
    assert "compile refused vit" in said
    assert "llama" not in said


def test_from_files_that_do_not_do(saved: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = json.loads(saved["llama"].read_text())
    other = tmp_path / "other.json"

    def refused(content: dict[str, Any], *options: str) -> str:
        other.write_text(json.dumps(content))
        assert main(["model", "--from", str(saved["vit"]), str(other), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    not_ours = f"fastops.bench: --from {other}: not a file of `python -m fastops.bench model --json` of this version"
    assert refused(bench_content.content()) == not_ours
    assert refused(source | {"steps": 3}) == "fastops.bench: --from takes runs of one environment; steps differs"
    versions = source["versions"] | {"transformers": "4.0.0"}
    assert "versions differs" in refused(source | {"versions": versions})
    assert refused(source, "--arch=bert") == "fastops.bench: --from has nothing of bert"
    elsewhere = [r | {"device": "cuda:0"} for r in source["results"]]
    csv = tmp_path / "card.csv"
    assert "--csv keeps the lines of one device" in refused(source | {"results": elsewhere}, f"--csv={csv}")
    assert not csv.exists()


def test_status_of_a_file(answers: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    answers["fastops"] = {"refused": "it does not"}
    file = tmp_path / "model.json"
    assert run(f"--json={file}") == 1
    assert main(["model", "--from", str(file)]) == 1
