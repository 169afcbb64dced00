"""What the benchmark shows and writes: tables, JSON files, pictures. Its CSV files are test_bench_records.py's."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench_content import content

from fastops.bench import files, plane, plot, records, report, work
from fastops.bench.__main__ import main

TITLE = re.compile(">(layer_norm [^<]*)</text>")
POINT = records.Record("relu", "forward", "bf16", "8x16", "call", "generic", "fastops", 2000.0, None, 30.0)


def test_table() -> None:
    lines = report.text(content()).splitlines()
    assert "layer_norm, bf16, cuda:0, copy 4280 GB/s; peers: their time over fastops'" in lines
    forward, backward = (
        next(x.split() for x in lines if x.startswith(f"4096x1024  {d} ")) for d in work.DIRECTIONS[:2]
    )
    assert forward == ["4096x1024", "forward", "10.00", "20%", "4000", "0.93", "2.00x", "3.00x"]
    assert backward[-2:] == ["2.00x", "-"]
    assert ["layer_norm", "bf16", "cuda:0", "4096x1024", "forward", "1.0", "2.0", "3.0"] in [x.split() for x in lines]
    assert ["layer_norm", "bf16", "cuda:0", "forward", "8.00", "1.25x"] in [x.split() for x in lines]
    assert ["layer_norm", "bf16", "cuda:0", "0.125", "9.500", "2.500"] in [x.split() for x in lines]
    assert "apex is absent: not installed: how" in lines
    assert (
        "quack refused layer_norm bf16 backward, layer_norm bf16 forward+backward: its layer_norm has no gradient"
        in lines
    )


def test_table_spells_in_features() -> None:
    found = content()
    found["results"] = [r | {"in_features": 32} for r in found["results"]] + found["results"]
    lines = [x.split()[0] for x in report.text(found).splitlines() if x.startswith("4096x")]
    assert lines == [f"4096x{n}" for n in ("32x256", "32x1024", "256", "1024") for _ in work.DIRECTIONS]


def test_table_names_peers_that_are_ahead() -> None:
    ahead = content()
    assert "a peer is ahead" not in report.text(ahead)
    ahead["results"][1]["times_fastops"], ahead["results"][2]["times_fastops"] = 0.98, 0.9
    lines = report.text(ahead).splitlines()
    start = lines.index("Where a peer is ahead by more than 3%; its time over fastops'")
    assert lines[start + 2].split() == ["layer_norm", "bf16", "cuda:0", "4096x256", "forward", "quack", "0.90x"]
    assert not lines[start + 3]


def test_table_has_what_is_no_peer_in_columns_alone() -> None:
    """Another form of ours and the products of a loss; a share of the copy is nothing to either."""
    found = content()
    for r, name in zip(found["results"], itertools.cycle(("fastops", "fastops save=none", "mm")), strict=False):
        r |= {"implementation": name, "share_of_copy": None}
        r |= {"microseconds": 10.0, "times_fastops": 1.0 if name == "fastops" else 0.5, "refused": ""}
    text = report.text(found)
    assert "a peer is ahead" not in text
    line = next(x.split() for x in text.splitlines() if x.startswith("4096x1024  forward  "))
    assert line == ["4096x1024", "forward", "10.00", "20%", "4000", "-", "0.50x", "0.50x"]


def test_table_names_what_is_not_as_it_should_be() -> None:
    broken = content(paths={"cuda:0": "reference"})
    for r in broken["results"]:
        r["cold"] = False
    broken["results"][0] |= {"refused": "RuntimeError: out of memory", "microseconds": None}
    text = report.text(broken)
    assert "On cuda:0 fastops has no kernels and runs plain PyTorch." in text
    assert "FAILED" in text
    assert "fastops failed layer_norm bf16 4096x256 forward: RuntimeError: out of memory" in text
    assert "10.00*" in text
    assert "* the input sets together fit in the GPU's cache" in text


def test_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    earlier = content()
    for result in earlier["results"]:
        del result["in_features"]  # files of before shapes had them
    for result in earlier["host"]:  # of before medians were compared
        result["median"], result["microseconds"] = result["microseconds"], result.pop("best")
        result["times_fastops"] = 1.0
    file.write_text(json.dumps(earlier))
    assert main(["--from", str(file)]) == 0
    assert "copy 4280 GB/s" in capsys.readouterr().out
    assert files.read(str(file))["host"] == content()["host"]
    failed = content()
    failed["results"][0]["refused"] = "RuntimeError: no"
    file.write_text(json.dumps(failed))
    assert main(["--from", str(file)]) == 1


def test_from_several_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of one environment are shown as one; of two, refused."""
    paths = [tmp_path / f"{k}.json" for k in range(3)]
    contents = [content() for _ in paths]
    for result in contents[1]["results"]:
        result["op"] = "rms_norm"
    contents[2]["environment"] = contents[2]["environment"] | {"cpu": "another"}
    for file, one in zip(paths, contents, strict=True):
        file.write_text(json.dumps(one))
    assert main(["--from", str(paths[0]), str(paths[1])]) == 0
    shown = capsys.readouterr().out
    assert "layer_norm, bf16" in shown
    assert "rms_norm, bf16" in shown
    assert main(["--from", str(paths[0]), str(paths[1]), "--op", "rms_norm", "--dtype", "bf16"]) == 0
    assert "layer_norm, bf16" not in capsys.readouterr().out
    assert main(["--from", str(paths[0]), "--op", "rms_norm"]) == 2
    assert "--from has nothing of rms_norm" in capsys.readouterr().err
    assert main(["--from", str(paths[0]), str(paths[2])]) == 2
    assert "runs of one environment; environment differs" in capsys.readouterr().err


def test_a_file_has_a_line_a_result(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    files.write(content(), str(file))
    assert files.read(str(file)) == json.loads(json.dumps(content()))
    assert sum('"implementation"' in line for line in file.read_text().splitlines()) == sum(
        len(content()[name]) for name in files.RESULTS
    )


def test_plot(tmp_path: Path) -> None:
    source, picture = tmp_path / "bench.json", tmp_path / "picture.svg"
    source.write_text(json.dumps(content()))
    assert main(["--from", str(source), "--plot", str(picture)]) == 0
    drawn = picture.read_text()
    assert drawn == plot.drawn(filter(None, records.records_of(content()).values())), "the same bytes again"
    ElementTree.fromstring(drawn)
    assert [name for name in ("fastops", "eager", "quack", "liger") if f">{name}</text>" in drawn] == [
        "fastops",
        "eager",
        "quack",
    ]
    assert drawn.count("<circle") == 2 * (3 + 2 + 2), "a dot a length, direction and implementation"


def test_plane(tmp_path: Path) -> None:
    """What has no share: a panel a shape, a point where memory was measured, a line where not."""
    found = content()
    for r in found["results"]:
        r |= {"in_features": 64, "share_of_copy": None}
        if r["implementation"] == "quack":
            r |= {"implementation": "mm", "refused": "", "microseconds": 5.0, "peak_bytes": None}
    source, picture = tmp_path / "bench.json", tmp_path / "picture.svg"
    source.write_text(json.dumps(found))
    assert main(["--from", str(source), "--plot", str(picture)]) == 0
    drawn = picture.read_text()
    kept = list(filter(None, records.records_of(found).values()))
    assert drawn == plane.drawn(reversed(kept)), "the same bytes in any order"
    ElementTree.fromstring(drawn)
    titles = [f"layer_norm {d}, bf16, 4096×64×{n}" for d in sorted(work.DIRECTIONS) for n in (256, 1024)]
    assert TITLE.findall(drawn) == titles
    assert drawn.count("<circle") == len(titles) * 2
    assert drawn.count("stroke-dasharray") == drawn.count(">mm</text>") == len(titles)
    assert ">eager</text>" in drawn


def test_plane_without_memory() -> None:
    assert "<circle" not in plane.drawn([dataclasses.replace(POINT, peak_mb=None)])


def test_labels_of_a_plane_are_apart() -> None:
    """Points in one place, whose labels go above and below one another."""
    names = sorted(("fastops", "eager", "compile", "liger", "quack"))
    drawn = plane.drawn([dataclasses.replace(POINT, implementation=name) for name in names])
    labels = re.findall(r"<text ([^>]*)>(\w+)</text></g>", drawn)
    assert sorted(name for _, name in labels) == names
    assert len({place for place, _ in labels}) == len(names)


def test_plot_keeps_numbers_of_rows_apart() -> None:
    found = content()
    found["environment"]["capabilities"]["gpus"] = []  # no level in the titles
    several = found | {"results": [*found["results"], *(r | {"rows": 37} for r in found["results"])]}
    for one, rows in ((found, [""]), (several, [", 4096 rows", ", 37 rows"])):
        titles = TITLE.findall(plot.drawn(filter(None, records.records_of(one).values())))
        assert titles == [f"layer_norm {direction}, bf16{which}" for which in rows for direction in work.DIRECTIONS]


def test_not_our_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "selftest.json"
    file.write_text('{"passed": true}')
    assert main(["--from", str(file)]) == 2
    assert "not a file of `python -m fastops.bench --json`" in capsys.readouterr().err
