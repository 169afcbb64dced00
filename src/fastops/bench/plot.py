"""Pictures of the results: the share of the copy bandwidth over the row length, and the host times."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..selftest.target import NotThereError
from .work import DIRECTIONS

FORMATS = (".png", ".svg")

# One colour an implementation in every picture, told apart by colour-blind eyes too (Okabe and Ito).
_COLOURS = {
    "fastops": "#D55E00",
    "eager": "#000000",
    "compile": "#0072B2",
    "liger": "#009E73",
    "quack": "#CC79A7",
    "apex": "#E69F00",
    "flash_attn": "#56B4E9",
}


def check(file: str) -> None:
    """Before hours of measuring, not after."""
    if Path(file).suffix not in FORMATS:
        raise NotThereError(f"--plot must end in one of {', '.join(FORMATS)}, got {file!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise NotThereError("--plot needs matplotlib: pip install matplotlib")


def write(content: dict[str, Any], file: str) -> list[str]:
    """The files that were written: ``file`` and, with host times, one beside it that ends in ``-host``."""
    check(file)
    written = []
    if any(not r["refused"] for r in content["results"]):
        _shares(content, file)
        written.append(file)
    if any(not r["refused"] for r in content["host"]):
        beside = str(Path(file).with_stem(Path(file).stem + "-host"))
        _host(content["host"], beside)
        written.append(beside)
    return written


def _shares(content: dict[str, Any], file: str) -> None:
    """A line of panels for each op, dtype and device, and each number of rows where row lengths come with several."""
    results = [r for r in content["results"] if not r["refused"]]
    apart = _with_several_rows(results)

    def line_of(result: dict[str, Any]) -> tuple[str, ...]:
        return *_group(result), _rows(result) if _group(result) in apart else ""

    groups = list(dict.fromkeys(map(line_of, results)))
    figure = _figure(4.2 * len(DIRECTIONS), 0.6 + 2.8 * len(groups))
    panels = figure.subplots(len(groups), len(DIRECTIONS), squeeze=False, sharey="row")
    names = list(dict.fromkeys(r["implementation"] for r in results))
    for line, group in zip(panels, groups, strict=True):
        op, dtype, device, rows = group
        for panel, direction in zip(line, DIRECTIONS, strict=True):
            chosen = [r for r in results if line_of(r) == group and r["direction"] == direction]
            for k, name in enumerate(names):
                points = sorted((r["columns"], r["share_of_copy"]) for r in chosen if r["implementation"] == name)
                if points:
                    style = {"color": _COLOURS.get(name), "zorder": 3 - k / 10}  # fastops, the first, on top
                    panel.plot(*zip(*points, strict=True), marker="o", markersize=4, label=name, **style)
            panel.set_title(f"{op} {direction}, {dtype}, {device}{rows and f', {rows}'}", fontsize=9)
            panel.set_xscale("log", base=2)
            lengths = sorted({r["columns"] for r in chosen})
            panel.set_xticks(lengths, [str(n) for n in lengths], fontsize=8, rotation=30)
            panel.minorticks_off()
            panel.grid(alpha=0.3)
            panel.set_xlabel("row length")
        line[0].set_ylim(bottom=0)  # of the whole line, once every panel has its points
        line[0].set_ylabel("share of copy bandwidth")
    handles = {label: h for p in panels.flat for h, label in zip(*p.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False)
    figure.savefig(file)


def _group(result: dict[str, Any]) -> tuple[str, str, str]:
    return result["op"], result["dtype"], result["device"]


def _rows(result: dict[str, Any]) -> str:
    rows, features = result["rows"], result["in_features"]
    return f"{rows} rows" if features is None else f"{rows} rows of {features} features"


def _with_several_rows(results: Sequence[dict[str, Any]]) -> set[tuple[str, str, str]]:
    found: dict[tuple[tuple[str, str, str], int], set[str]] = {}
    for r in results:
        found.setdefault((_group(r), r["columns"]), set()).add(_rows(r))
    return {group for (group, _), rows in found.items() if len(rows) > 1}


def _figure(width: float, height: float) -> Any:
    """matplotlib is imported here alone; a Figure by itself opens no window and leaves no state."""
    return importlib.import_module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def _host(results: Sequence[dict[str, Any]], file: str) -> None:
    results = [r for r in results if not r["refused"]]

    def call_of(result: dict[str, Any]) -> tuple[str, ...]:
        return *_group(result), result["direction"]

    calls = list(dict.fromkeys(map(call_of, results)))
    names = list(dict.fromkeys(r["implementation"] for r in results))
    figure = _figure(8, 1.2 + 0.16 * len(calls) * (len(names) + 1))
    panel = figure.subplots()
    thickness = 1 / (len(names) + 1)
    for k, name in enumerate(names):
        times = {call_of(r): r["microseconds"] for r in results if r["implementation"] == name}
        places = [(i + k * thickness, times[call]) for i, call in enumerate(calls) if call in times]
        panel.barh(*zip(*places, strict=True), height=thickness, label=name, color=_COLOURS.get(name))
    panel.set_yticks([i + (len(names) - 1) * thickness / 2 for i in range(len(calls))], [" ".join(c) for c in calls])
    panel.invert_yaxis()
    panel.set_xlabel("host time of a call on 16 numbers a tensor, µs")
    panel.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside upper center", ncols=len(names), frameon=False)
    figure.savefig(file)
