"""The command line. Exit status 0: all passed; 1: a check failed; 2: asked for something that is not there."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator

from .. import capabilities
from .._console import print_anything
from . import report
from .choices import add_arguments, chosen_cases, chosen_dtypes
from .runner import LEFT_OUT, Result, Step, aten_targets, run, steps, targets
from .target import NotThereError, devices_of, paths_of, why_no_cuda
from .workers import MOST, OF_A_GPU, processes_for, shared_steps

# Threads of OpenMP that wait awake take the cores from all else. Of large tensors Linux clears fewer pages, as each is
# larger, and none where glibc, by its own names for that, keeps some of the memory for the next ones.
ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "THP_MEM_ALLOC_ENABLE": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 29),
}


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m fastops.selftest",
        description="Checks every op on this machine: values and gradients against float64, and the other promises.",
    )
    p.add_argument("--device", help="cpu, cuda, cuda:<index> or all; default all there are")
    add_arguments(p)
    p.add_argument(
        "--isa",
        metavar="LEVEL",
        help="CPU level, or all that run here; default all, with --quick the chosen one",
    )
    p.add_argument("--quick", action="store_true", help="the chosen CPU level and no large inputs: under a minute")
    p.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"processes that share the work; default one a core, at most {MOST}, at most one for each "
        f"{OF_A_GPU >> 30} GiB of a GPU's memory, and 1 for few ops",
    )
    p.add_argument("--aten", action="store_true", help="torch's own functions that fastops.enable() overrides alone")
    p.add_argument(
        "--distributed",
        nargs="?",
        type=int,
        const=2,
        metavar="N",
        help="on DTensors of N processes instead, default 2: by gloo on the CPU, with --device cuda by NCCL on N GPUs",
    )
    p.add_argument("--json", metavar="FILE", help="write the environment and every result")
    p.add_argument("--junit", metavar="FILE", help="write a JUnit report")
    return p


def chosen_steps(options: argparse.Namespace) -> Iterator[Step]:
    cases, dtypes = chosen_cases(options.op), chosen_dtypes(options.dtype)
    if options.jobs is not None and options.jobs < 1:
        raise NotThereError(f"--jobs must be 1 or more, got {options.jobs}")
    if options.distributed is None:
        devices = devices_of(options.device)
        paths = [path for device in devices for path in paths_of(device, options.isa, options.quick)]
        groups = list((aten_targets if options.aten else targets)(cases, paths, dtypes, options.quick))
        processes = processes_for(groups, options.jobs)
        if processes > 1:
            return shared_steps(groups, processes)
        return steps(groups, (run(target) for _, _, group in groups for target in group))
    if options.aten or options.isa or options.jobs:
        raise NotThereError("--distributed must be without --aten, --isa and --jobs")
    from .distributed.run import planned, steps_of  # torch.distributed.tensor takes a second to import

    return steps_of(planned(cases, dtypes, options.device, options.distributed, options.quick))


def main(argv: list[str] | None = None) -> int:
    print_anything()
    options = parser().parse_args(argv)
    try:
        chosen = chosen_steps(options)
    except NotThereError as error:
        print(f"fastops.selftest: {error}", file=sys.stderr)
        return 2

    print(capabilities())
    if options.device is None and (reason := why_no_cuda()):
        print(f"No GPU is tested: {reason}.")
    print("\nLargest errors in ulps, forward|gradient, against float64:")
    progress, results, start = report.Progress(), list[Result](), time.perf_counter()
    for step in chosen:
        if step.results is None:
            progress.running(f"{step.op} on {step.path}, {step.dtype}")
        else:
            if not step.beside or not all(r.ok for r in step.results):
                progress.done(report.line(step.op, step.path, step.results))
            results += step.results
    seconds = time.perf_counter() - start

    print(report.summary(results, seconds))
    if options.quick and options.distributed is None:
        print(f"A quick run leaves out {LEFT_OUT}.")
    if options.json:
        report.write_json(options.json, results, seconds)
    if options.junit:
        report.write_junit(options.junit, results, seconds)
    return 0 if all(r.ok for r in results) else 1


if __name__ == "__main__":
    # Of the processes that share the work, which have yet to import torch.
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    sys.exit(main())
