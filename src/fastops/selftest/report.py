"""What the selftest prints and writes: a line per op and device, a summary to paste, JSON and JUnit files."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import torch

from .. import capabilities
from .checks import NOT_CHECKED, ONE_ROUNDING
from .reach import REACHED
from .runner import Result

DETAIL_WIDTH = 400


class Progress:
    """On a terminal one line that is overwritten while an op runs; elsewhere only finished lines."""

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()

    def running(self, text: str) -> None:
        if self._live:
            print(f"\r\x1b[K  {text} ...", end="", flush=True)

    def done(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self._live else text, flush=True)


def line(op: str, path: str, results: Sequence[Result]) -> str:
    """``layer_norm  cpu avx2  f32 0.9|1.2  ...  ok``: the largest errors forward and in the gradients, in ulps."""
    failed = sum(not r.ok for r in results)
    errors: dict[str, dict[str, float]] = {}
    for r in results:
        if r.error is not None:
            errors.setdefault(r.dtype, {})[r.check] = r.error
    shown = "  ".join(f"{dtype} {_short(e.get('forward'))}|{_short(e.get('gradient'))}" for dtype, e in errors.items())
    verdict = f"{failed} of {len(results)} FAILED" if failed else f"{len(results)} ok"
    seconds = sum(r.seconds for r in results)
    return f"{op:<20} {path:<17} {shown:<68} {verdict:>12} {seconds:6.1f} s"


def _short(error: float | None) -> str:
    return "-" if error is None else f"{error:.2f}"


def failure(r: Result) -> str:
    numbers = "" if r.error is None else f": {r.error:.3g} ulps, at most {r.bound:g}"
    detail = r.detail if len(r.detail) <= DETAIL_WIDTH else r.detail[:DETAIL_WIDTH] + " ..."
    return f"FAILED {r.op}, {r.path}, {r.dtype}: {r.check}{numbers}" + (f"\n       {detail}" if detail else "")


def summary(results: Sequence[Result], seconds: float) -> str:
    """Of the failures of one check of one op the first in full, then where else it failed."""
    groups: dict[tuple[str, str], list[Result]] = {}
    for r in results:
        if not r.ok:
            groups.setdefault((r.op, r.check), []).append(r)
    lines = []
    for first, *others in groups.values():
        lines.append(failure(first))
        if others:
            lines.append(f"       also on {', '.join(f'{r.path} {r.dtype}' for r in others)}")
    lines += dict.fromkeys(f"{r.op}, {r.dtype}: {r.check} {r.detail}" for r in results if r.check == ONE_ROUNDING)
    lines += dict.fromkeys(f"{r.check}: {r.detail}" for r in results if r.detail.startswith(NOT_CHECKED))
    lines += _reached(results)
    lines += _of_paths(results)
    failed = sum(map(len, groups.values()))
    ops, paths = len({r.op for r in results}), ", ".join(dict.fromkeys(r.path for r in results))
    versions = ", ".join(f"{name} {version}" for name, version in environment()["versions"].items())
    verdict = f"{failed} of {len(results)} checks FAILED" if failed else f"all {len(results)} checks passed"
    return "\n".join([*lines, "", f"{verdict} in {seconds:.0f} s: {ops} ops on {paths}; {versions}"])


def _of_paths(results: Sequence[Result]) -> list[str]:
    """How many checks of each path passed: an op's line is of its device's best alone, or of where it fails."""
    of_each: dict[str, list[Result]] = {}
    for r in results:
        of_each.setdefault(r.path, []).append(r)
    return [f"{path}: {sum(r.ok for r in of)} of {len(of)} checks ok" for path, of in of_each.items()]


def _reached(results: Sequence[Result]) -> list[str]:
    """Of each path the rules of its plan that ran, of those that there are for its operators and dtypes."""
    counts: dict[str, list[int]] = {}
    for r in results:
        if r.check == REACHED:
            run, there = map(int, r.detail.split(" of "))
            reached = counts.setdefault(r.path, [0, 0])
            reached[0] += run
            reached[1] += there
    return [f"{REACHED} on {path}: {run} of {there}" for path, (run, there) in counts.items()]


def environment() -> dict[str, Any]:
    found = capabilities()
    return {
        "versions": {
            found.build.distribution: found.build.version,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "threads": torch.get_num_threads(),
        "gpus": [gpu.name for gpu in found.gpus],
        "capabilities": dataclasses.asdict(found),
    }


def _cpu_name() -> str:
    try:
        lines = FilePath("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), platform.machine())


def write_json(file: str, results: Sequence[Result], seconds: float) -> None:
    content = {
        "passed": all(r.ok for r in results),
        "seconds": round(seconds, 1),
        "environment": environment(),
        "results": [dataclasses.asdict(r) | {"seconds": round(r.seconds, 4)} for r in results],
    }
    # Infinity and NaN are not JSON: an error that is not finite becomes a string.
    FilePath(file).write_text(json.dumps(_finite(content), indent=1, default=str, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return repr(value) if isinstance(value, float) and value - value != 0 else value


def write_junit(file: str, results: Sequence[Result], seconds: float) -> None:
    failed = sum(not r.ok for r in results)
    totals = {"tests": str(len(results)), "failures": str(failed), "time": f"{seconds:.1f}"}
    suite = ElementTree.Element("testsuite", {"name": "fastops.selftest", **totals})
    for r in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{r.op}.{r.path}", name=f"{r.check} {r.dtype}", time=f"{r.seconds:.3f}"
        )
        if not r.ok:
            ElementTree.SubElement(case, "failure", message=failure(r))
    ElementTree.ElementTree(suite).write(file, encoding="utf-8", xml_declaration=True)
