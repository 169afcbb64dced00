"""The CSV file of a card: its values, what a later run replaces, its bytes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from bench_content import content

from fastops.bench import records
from fastops.bench.__main__ import main
from fastops.selftest.target import NotThereError

KEY = ("layer_norm", "forward", "bf16", "4096x256", "call", "sm90", "fastops")


def on_a_card(**changes: Any) -> dict[str, Any]:
    """As of torch 2.11 and commit abc on a GPU whose kernels are those of the group sm90."""
    found = content(**changes)
    capabilities = found["environment"]["capabilities"] | {
        "build": {"git_commit": "abc"},
        "gpus": [{"index": 0, "arch": "sm90"}],
    }
    found["environment"] = {"versions": {"torch": "2.11.0+cu130"}, "capabilities": capabilities}
    return found


def lines(found: dict[str, Any]) -> list[records.Record]:
    return [r for r in records.records_of(found).values() if r]


def test_values() -> None:
    by = {r.key: r for r in lines(on_a_card())}
    assert by[KEY] == records.Record(*KEY, 10.0, 4000 / 4280, 2**20 / 1e6, "2.11.0+cu130", "abc")
    host = by["layer_norm", "forward", "bf16", "1x16", "host", "sm90", "eager"]
    assert (host.us, host.share_of_copy, host.peak_mb) == (10.0, None, None)
    firsts = {r.measure: r.us for r in by.values() if r.implementation == "compile"}
    assert firsts == {"first": 9.5e6, "again": 2.5e6}
    assert not [r for r in by.values() if r.implementation == "quack" and r.direction != "forward"], "refused"


def test_bytes() -> None:
    text = records.text(lines(on_a_card()))
    header, *rest = text.splitlines()
    assert header == "op,direction,dtype,shape,measure,level,implementation,us,share_of_copy,peak_mb,torch,commit"
    assert "layer_norm,forward,bf16,4096x256,call,sm90,fastops,10,0.9346,1.0486,2.11.0+cu130,abc" in rest
    assert "layer_norm,forward,bf16,8x1024,first,sm90,fastops,125000,,,2.11.0+cu130,abc" in rest
    assert text == records.text(reversed(lines(on_a_card()))), "sorted"
    shapes = [line.split(",")[3] for line in rest if ",forward,bf16," in line]
    assert shapes == sorted(shapes, key=lambda shape: [int(n) for n in shape.split("x")])


@pytest.mark.parametrize(
    ("us", "cell"), [(0.412345, "0.41235"), (9.79200005, "9.792"), (348.0, "348"), (7213456.7, "7213457"), (0.0, "0")]
)
def test_five_digits_of_a_time(us: float, cell: str, tmp_path: Path) -> None:
    text = records.text([dataclasses.replace(lines(on_a_card())[0], us=us)])
    assert text.splitlines()[1].split(",")[7] == cell
    file = tmp_path / "card.csv"
    file.write_text(text)
    assert records.text(records.read(file)) == text


def test_a_run_replaces_its_own_lines(tmp_path: Path) -> None:
    file = str(tmp_path / "card.csv")
    records.write(on_a_card(), file)
    before = {r.key: r for r in records.read(file)}
    later = on_a_card(results=[dict(r) for r in content()["results"][:3]], host=[], first=[])
    later["environment"]["versions"]["torch"] = "2.13.0"
    later["results"][0]["microseconds"] = 8.0
    later["results"][1] |= {"microseconds": None, "refused": "RuntimeError: out of memory"}
    records.write(later, file)
    after = {r.key: r for r in records.read(file)}
    changed = {key for key in before if before[key] != after.get(key)}
    assert changed == {(*KEY[:-1], name) for name in ("fastops", "eager", "quack")}
    assert (after[KEY].us, after[KEY].torch) == (8.0, "2.13.0")
    assert (*KEY[:-1], "eager") not in after, "refused now"


def test_levels_are_lines_of_their_own() -> None:
    found = content()
    for r in (*found["results"], *found["host"], *found["first"]):
        r["device"] = "cpu"
    keys = []
    for level in ("avx2", "avx512"):
        found["environment"]["capabilities"]["cpu_level"] = level
        keys.append(records.records_of(found).keys())
    assert not keys[0] & keys[1]


def test_of_earlier_json_files(tmp_path: Path) -> None:
    source, file = tmp_path / "bench.json", tmp_path / "card.csv"
    source.write_text(json.dumps(on_a_card() | {"environment": content()["environment"]}))
    assert main(["--from", str(source), "--csv", str(file)]) == 0
    assert {r.key[:4] for r in records.read(file)} >= {("layer_norm", "backward", "bf16", "4096x1024")}


def test_one_device_a_file(tmp_path: Path) -> None:
    with pytest.raises(NotThereError, match="--csv keeps the lines of one device, got cpu, cuda:0"):
        records.check(str(tmp_path / "card.csv"), ["cpu", "cuda:0"])
