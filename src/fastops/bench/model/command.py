"""The command line of ``python -m fastops.bench model``. Exit status as of the benchmark of operators."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from ...selftest.choices import chosen_dtypes
from ...selftest.report import environment
from ...selftest.runner import name_of
from ...selftest.target import NotThereError, devices_of, why_no_cuda
from .. import files, fresh, plot, records
from . import report, results
from .architectures import ARCHITECTURES, size_of
from .implementations import IMPLEMENTATIONS, is_ours, lacking

TIMEOUT = 1800
STEPS = 10
_DISTRIBUTIONS = ("torch", "transformers", "liger-kernel", "triton")
_DEFAULT_DTYPE = {"cuda": "bf16", "cpu": "f32"}
# Not a module of ours: importing one would import fastops before the clock starts.
_PROGRAM = """
import sys, time
import torch
torch.zeros(8, device=sys.argv[1]).add_(1).sum().item()
start = time.perf_counter()
import fastops
imported = time.perf_counter() - start
from fastops.bench.model.child import child
child(sys.argv[2], imported)
"""


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m fastops.bench model",
        description="Times a training step and a forward of models of transformers, each implementation in a process "
        "of its own. The weights and the tokens are random.",
    )
    every = ", ".join(ARCHITECTURES)
    p.add_argument("--arch", action="append", metavar="NAME", help=f"one of {every}; repeatable; default all")
    p.add_argument("--size", metavar="NAME", help="tiny, or 8layers or base; default tiny on the CPU alone")
    p.add_argument("--peers", metavar="LIST", help=f"some of {','.join(IMPLEMENTATIONS)}; default all there are")
    p.add_argument("--device", help="cpu, cuda or cuda:<index>; default the first GPU, or the CPU without one")
    p.add_argument("--dtype", help="f32, f16, bf16 or f64; default bf16, on the CPU f32")
    p.add_argument("--steps", type=int, default=STEPS, metavar="N", help="how many losses to keep; default %(default)s")
    p.add_argument("--json", metavar="FILE", help="write the environment and every result")
    p.add_argument("--csv", metavar="FILE", help="put a line a measurement into the file, in place of its earlier ones")
    p.add_argument("--plot", metavar="FILE", help=f"draw peak memory over the time of a step, {plot.FORMAT}")
    p.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        metavar="FILE",
        help="measure nothing: show what --json wrote, once or more, or of it the given models and peers",
    )
    return p


@dataclass(frozen=True)
class Plan:
    """What is asked for, all of it there."""

    archs: dict[str, str]  # and the size of each
    peers: list[str]
    device: torch.device
    dtype: torch.dtype
    steps: int

    def __iter__(self) -> Iterator[dict[str, str]]:
        for arch, size in self.archs.items():
            for name in self.peers:
                where = {"dtype": name_of(self.dtype), "device": str(self.device)}
                yield {"arch": arch, "size": size, **where, "implementation": name}


def plan_of(options: argparse.Namespace) -> Plan:
    if importlib.util.find_spec("transformers") is None:
        raise NotThereError("transformers is not installed: pip install transformers")
    if options.device == "all":
        raise NotThereError("device must be cpu, cuda or cuda:<index>, got 'all'")
    (device,) = devices_of(options.device or ("cpu" if why_no_cuda() else "cuda"))
    if options.steps < 1:
        raise NotThereError(f"steps must be at least 1, got {options.steps}")
    names = chosen(options)
    archs = {arch: size_of(arch, options.size, device) for arch in names.get("arch", ARCHITECTURES)}
    (dtype,) = chosen_dtypes([options.dtype or _DEFAULT_DTYPE[device.type]])
    return Plan(archs, names.get("implementation", list(IMPLEMENTATIONS)), device, dtype, options.steps)


def chosen(options: argparse.Namespace) -> dict[str, list[str]]:
    """What is asked for by name, by its field in a row; no field where all are."""
    names: dict[str, list[str]] = {}
    if options.arch:
        names["arch"] = _known("arch", options.arch, ARCHITECTURES)
    if options.peers:
        names["implementation"] = _known("peers", options.peers.split(","), IMPLEMENTATIONS)
    return names


def _known(option: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    for name in names:
        if name not in known:
            raise NotThereError(f"{option} must be some of {', '.join(known)}, got {name!r}")
    return list(dict.fromkeys(names))


def measure(row: dict[str, str], dtype: torch.dtype, steps: int) -> results.Row:
    if reason := lacking(row["implementation"], torch.device(row["device"])):
        return row | {"refused": reason}
    request = row | {"dtype": str(dtype).removeprefix("torch."), "steps": steps}
    with tempfile.TemporaryDirectory(prefix="fastops-bench-") as folder:
        arguments = (row["device"], json.dumps(request))
        return row | fresh.answer(_PROGRAM, arguments, folder, TIMEOUT, HF_HUB_OFFLINE="1")


def run(plan: Plan, save: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Measures; the content of the JSON file, which is saved after each implementation."""
    start = time.perf_counter()
    content: dict[str, Any] = {
        "format": results.FORMAT,
        "environment": environment(),
        "versions": dict(_versions()),
        "steps": plan.steps,
        "results": [],
    }
    for row in plan:
        content["results"].append(measure(row, plan.dtype, plan.steps))
        content["seconds"] = round(time.perf_counter() - start, 1)
        print(report.progress(content["results"][-1]), file=sys.stderr, flush=True)
        save(content)
    return content


def _versions() -> Iterator[tuple[str, str]]:
    for name in _DISTRIBUTIONS:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue


def failed(content: dict[str, Any]) -> bool:
    return any(r.get("refused") and is_ours(r["implementation"]) for r in content["results"])


def _keep(options: argparse.Namespace, content: dict[str, Any]) -> None:
    files.write(content, options.json)
    if options.csv:
        records.put(results.records_of(content), options.csv)


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    try:
        files.check_folders(options.json, options.csv, options.plot)
        if options.plot:
            plot.check(options.plot)
        if options.sources:
            content = files.with_fields(results.read(options.sources), chosen(options), ["results"])
            if options.csv:
                records.check(options.csv, [r["device"] for r in content["results"]])
            _keep(options, content)
        else:
            plan = plan_of(options)
            if options.csv:
                records.check(options.csv, [plan.device])
            content = run(plan, functools.partial(_keep, options))
    except NotThereError as error:
        print(f"fastops.bench: {error}", file=sys.stderr)
        return 2
    print(report.text(content))
    if options.plot:
        found = filter(None, results.records_of(content).values())
        Path(options.plot).write_text(report.picture(found), encoding="utf-8")
    return 1 if failed(content) else 0
