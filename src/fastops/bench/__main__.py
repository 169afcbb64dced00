"""The command line. Exit status 0: all measured; 1: fastops failed somewhere; 2: asked for something not there."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .. import capabilities
from .._console import print_anything
from ..cases import Case
from ..selftest.choices import add_arguments, chosen_cases, chosen_dtypes
from ..selftest.report import environment
from ..selftest.runner import name_of
from ..selftest.target import NotThereError, devices_of, why_no_cuda
from . import files, first, host, kernel, memory, peers, plot, records, report
from .problems import MOST_SETS, Shape, check_shapes, default_shapes, parse_shapes, spelled
from .timing import ROUNDS

MEASURES = ("call", "host", "first")
_DEFAULT_DTYPE = {"cuda": torch.bfloat16, "cpu": torch.float32}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m fastops.bench",
        description="Times every op on this machine, forward and backward, beside what a user would pick instead. "
        "`python -m fastops.bench model --help`: whole models.",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:<index> or all; default the first GPU, or the CPU without one")
    add_arguments(p, dtype_default="; default bf16, on the CPU f32")
    p.add_argument(
        "--shapes",
        metavar="LIST",
        help="rows and columns, such as 32768x256,1024x65536; with a matrix also 16x32x128, in_features between",
    )
    p.add_argument("--peers", metavar="LIST", help=f"some of {','.join(peers.PEERS)}; default all that are installed")
    p.add_argument(
        "--measure",
        metavar="LIST",
        help="some of call (time and memory on large inputs), host (of a small call), first (in a fresh process); "
        "default all",
    )
    p.add_argument("--quick", action="store_true", help="two shapes, and the first result of one op alone")
    p.add_argument("--json", metavar="FILE", help="write the environment and every result, after each op what there is")
    p.add_argument("--csv", metavar="FILE", help="put a line a measurement into the file, in place of its earlier ones")
    p.add_argument("--plot", metavar="FILE", help=f"draw the share of the copy bandwidth, {plot.FORMAT}")
    p.add_argument(
        "--from",
        dest="sources",
        nargs="+",
        metavar="FILE",
        help="measure nothing: show what --json wrote, once or more, or of it the given ops and dtypes",
    )
    return p


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is asked for, all of it there."""

    cases: list[Case]
    devices: list[torch.device]
    dtypes: list[torch.dtype] | None
    shapes: list[Shape] | None
    peers: list[str]
    measures: list[str]
    quick: bool

    def dtypes_of(self, case: Case, device: torch.device) -> list[torch.dtype]:
        return [d for d in self.dtypes or [_DEFAULT_DTYPE[device.type]] if d in case.dtypes]

    def shapes_of(self, case: Case, device: torch.device) -> list[Shape]:
        return default_shapes(case, device, self.quick) if self.shapes is None else self.shapes

    def __iter__(self) -> Iterator[tuple[Case, torch.device, torch.dtype]]:
        for device in self.devices:
            for case in self.cases:
                for dtype in self.dtypes_of(case, device):
                    yield case, device, dtype


def plan_of(options: argparse.Namespace) -> Plan:
    cases = chosen_cases(options.op)
    shapes = parse_shapes(options.shapes) if options.shapes else None
    for case in cases:
        check_shapes(case, shapes or ())
    return Plan(
        cases=cases,
        devices=devices_of(options.device or ("cpu" if why_no_cuda() else "cuda")),
        dtypes=chosen_dtypes(options.dtype) if options.dtype else None,
        shapes=shapes,
        peers=peers.chosen_peers(options.peers),
        measures=chosen_measures(options.measure),
        quick=options.quick,
    )


def chosen_measures(text: str | None) -> list[str]:
    names = list(MEASURES) if text is None else text.split(",")
    for name in names:
        if name not in MEASURES:
            raise NotThereError(f"measure must be some of {', '.join(MEASURES)}, joined by commas, got {name!r}")
    return names


def run(plan: Plan, save: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Measures; the content of the JSON file, which is saved after each op: a long run may be stopped."""
    start = time.perf_counter()
    found = peers.versions(plan.peers)
    there = [name for name in plan.peers if "absent" not in found[name]]
    for name in plan.peers:
        if name not in there:
            tell(f"{name} is absent: {found[name]['absent']}")
    common: dict[str, Any] = {
        "format": files.FORMAT,
        "environment": environment(),
        "paths": {str(d): capabilities().paths.get(str(d), "reference") for d in plan.devices},
        "matmul_precision": torch.get_float32_matmul_precision(),
        "peers": found,
        "rounds": ROUNDS,
        "host_rounds": host.ROUNDS,
        "most_sets": MOST_SETS,
    }
    results, hosts, firsts = list[kernel.Result](), list[host.HostResult](), list[first.FirstResult]()
    content = common | {"memory_recycled": False, "seconds": 0.0, "results": [], "host": [], "first": []}
    with warnings.catch_warnings(), memory.recycled() as recycled, contextlib.ExitStack() as at_end:
        at_end.callback(gc.unfreeze)
        warnings.simplefilter("ignore")  # peers' own, and torch.compile's
        for case, device, dtype in plan:
            gc.unfreeze()
            gc.collect()
            gc.freeze()  # what peers have imported: half a million objects, looked through before each measurement
            with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
                _measure(plan, there, case, device, dtype, results, hosts, firsts)
            content |= {
                "memory_recycled": recycled,
                "seconds": round(time.perf_counter() - start, 1),
                "results": _dicts(results),
                "host": _dicts(hosts),
                "first": _dicts(firsts),
            }
            save(content)
    return content


def _measure(
    plan: Plan,
    names: list[str],
    case: Case,
    device: torch.device,
    dtype: torch.dtype,
    results: list[kernel.Result],
    hosts: list[host.HostResult],
    firsts: list[first.FirstResult],
) -> None:
    name = name_of(dtype)
    names = peers.of_op(names, case.name, dtype)
    what = f"{case.name} {name} {device}"
    if "call" in plan.measures:
        for shape in plan.shapes_of(case, device):
            for group in kernel.measure(case, dtype, name, device, shape, names):
                results += group
                tell(f"{what} {spelled(shape)} {group[0].direction}: {report.progress(_dicts(group))}")
    if "host" in plan.measures:
        for measured in host.measure(case, dtype, name, device, names):
            hosts += measured
            tell(f"{what} host {measured[0].direction}: {report.progress(_dicts(measured))}")
    if "first" in plan.measures and not (plan.quick and firsts):
        for one in first.measure(case.name, dtype, name, device, names):
            firsts.append(one)
            took = f"refused: {one.refused}" if one.refused else f"{one.seconds:.3f} s"
            tell(f"{what} first result, {one.caches} caches: {one.implementation} {took}")


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _dicts(results: Iterable[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(r) for r in results]


def failed(content: dict[str, Any]) -> bool:
    every = (*content["results"], *content["host"], *content["first"])
    return any(r["refused"] and r["implementation"] == peers.OURS for r in every)


def _keep(options: argparse.Namespace, content: dict[str, Any]) -> None:
    files.write(content, options.json)
    records.write(content, options.csv)


def main(argv: list[str] | None = None) -> int:
    print_anything()
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["model"]:
        from .model import command

        return command.main(argv[1:])
    options = parser().parse_args(argv)
    try:
        files.check_folders(options.json, options.csv, options.plot)
        if options.plot:
            plot.check(options.plot)
        if options.sources:
            content = files.merged([files.read(file) for file in options.sources])
            content = files.part_of(content, options.op, options.dtype)
            if options.csv:
                records.check(options.csv, content["paths"])
                records.write(content, options.csv)
        else:
            plan = plan_of(options)
            if options.csv:
                records.check(options.csv, plan.devices)
            content = run(plan, functools.partial(_keep, options))
    except NotThereError as error:
        print(f"fastops.bench: {error}", file=sys.stderr)
        return 2
    print(report.text(content))
    if options.plot:
        plot.write(filter(None, records.records_of(content).values()), options.plot)
        tell(f"written: {options.plot}")
    return 1 if failed(content) else 0


if __name__ == "__main__":
    sys.exit(main())
