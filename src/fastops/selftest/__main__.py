"""The command line. Exit status 0: all passed; 1: a check failed; 2: asked for something that is not there."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

import torch

from .. import capabilities
from ..cases import CASES, DTYPES, Case
from . import report
from .runner import Result, name_of, run, targets
from .target import NotThereError, devices_of, paths_of, why_no_cuda


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m fastops.selftest",
        description="Proves every op on this machine: values and gradients against float64, and the other promises.",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:<index> or all; default all there are")
    p.add_argument(
        "--op", action="append", metavar="NAME", help=f"one of {', '.join(c.name for c in CASES)}; repeatable"
    )
    p.add_argument("--dtype", action="append", help=f"{', '.join(map(name_of, DTYPES))}; repeatable")
    p.add_argument(
        "--isa",
        metavar="LEVEL",
        help="CPU level, or all that run here; default all, with --quick the chosen one",
    )
    p.add_argument("--quick", action="store_true", help="the chosen CPU level and no large inputs: under a minute")
    p.add_argument("--json", metavar="FILE", help="write the environment and every result")
    p.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    return p


def chosen_cases(names: Iterable[str] | None) -> list[Case]:
    known = {case.name: case for case in CASES}
    for name in names or ():
        if name not in known:
            raise NotThereError(f"op must be one of {', '.join(known)}, got {name!r}")
    return [known[name] for name in names or known]


def chosen_dtypes(names: Iterable[str] | None) -> list[torch.dtype]:
    known = {name_of(dtype): dtype for dtype in DTYPES}
    aliases = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    for name in names or ():
        if name not in known | aliases:
            raise NotThereError(f"dtype must be one of {', '.join(known)}, got {name!r}")
    return [(known | aliases)[name] for name in names or known]


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        cases, dtypes = chosen_cases(options.op), chosen_dtypes(options.dtype)
        devices = devices_of(options.device)
        paths = [path for device in devices for path in paths_of(device, options.isa, options.quick)]
    except NotThereError as error:
        print(f"fastops.selftest: {error}", file=sys.stderr)
        return 2

    print(capabilities())
    if options.device is None and (reason := why_no_cuda()):
        print(f"No GPU is tested: {reason}.")
    print("\nLargest errors in ulps, forward|gradient, against float64:")
    progress, results, start = report.Progress(), list[Result](), time.perf_counter()
    for case, path, group in targets(cases, paths, dtypes, options.quick):
        found: list[Result] = []
        for target in group:
            progress.running(f"{case.name} on {path}, {name_of(target.dtype)}")
            found.extend(run(target))
        progress.done(report.line(case.name, str(path), found))
        results += found
    seconds = time.perf_counter() - start

    print(report.summary(results, seconds))
    if options.json:
        report.write_json(options.json, results, seconds)
    if options.junit:
        report.write_junit(options.junit, results, seconds)
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    sys.exit(main())
