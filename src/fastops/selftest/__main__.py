"""The command line. Exit status 0: all passed; 1: a check failed; 2: asked for something that is not there."""

from __future__ import annotations

import argparse
import sys
import time

from .. import capabilities
from .._console import print_anything
from . import report
from .choices import add_arguments, chosen_cases, chosen_dtypes
from .runner import Result, aten_targets, name_of, run, targets
from .target import NotThereError, devices_of, paths_of, why_no_cuda


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m fastops.selftest",
        description="Proves every op on this machine: values and gradients against float64, and the other promises.",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:<index> or all; default all there are")
    add_arguments(p)
    p.add_argument(
        "--isa",
        metavar="LEVEL",
        help="CPU level, or all that run here; default all, with --quick the chosen one",
    )
    p.add_argument("--quick", action="store_true", help="the chosen CPU level and no large inputs: under a minute")
    p.add_argument("--aten", action="store_true", help="torch's own functions that fastops.enable() overrides instead")
    p.add_argument("--json", metavar="FILE", help="write the environment and every result")
    p.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    return p


def main(argv: list[str] | None = None) -> int:
    print_anything()
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
    chosen = aten_targets if options.aten else targets
    for case, path, group in chosen(cases, paths, dtypes, options.quick):
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
