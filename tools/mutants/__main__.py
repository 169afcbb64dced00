"""Whether the selftest finds the faults of this folder, planted one at a time: ``make mutants``.

Exit status 0: all were found; 1: some passed; 2: one does not compile or has lost its place, or the selftest fails
without any. The working tree is only read: faults are planted in a copy in build/mutants/.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import asdict, dataclass
from pathlib import Path

from copied import BuildError, Copy
from fault import KINDS, Fault
from listed import FAULTS, wrong
from proof import Run, origin, selftest, stop

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    name: str
    kind: int
    verdict: str  # quick, whole, PASSED, ERROR, or compiles
    found: str = ""  # by which check
    seconds: float = 0.0

    def line(self) -> str:
        return f"{self.verdict:<8} {self.seconds:6.1f} s  kind {self.kind}  {self.name:<44} {self.found}".rstrip()


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="make mutants ARGS=...", description="Plants faults and runs the selftest on each."
    )
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="the faults to be found there; default cpu")
    p.add_argument("--only", action="append", metavar="NAME", help="this fault; repeatable")
    p.add_argument("--kind", type=int, choices=tuple(KINDS), help="faults of this kind")
    p.add_argument("--quick", action="store_true", help="no run of the whole selftest where the quick one passes")
    p.add_argument("--whole-ops", action="store_true", help="run every op, and not only those that a fault concerns")
    p.add_argument("--time", type=float, default=600, metavar="S", help="limit of a run in seconds; default 600")
    p.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time, the next build beside; default 1")
    p.add_argument("--list", action="store_true", help="print the faults")
    p.add_argument("--check", action="store_true", help="only whether each fault has its place in the sources")
    p.add_argument("--compile", action="store_true", help="only whether each compiles")
    p.add_argument("--json", metavar="FILE", help="write what was found, after each fault")
    return p


def chosen(options: argparse.Namespace, faults: Sequence[Fault]) -> list[Fault]:
    known = {fault.name for fault in faults}
    if unknown := [name for name in options.only or () if name not in known]:
        raise SystemExit(f"mutants: no fault is called {', '.join(unknown)}; --list prints them")
    return [
        fault
        for fault in faults
        if (fault.name in options.only if options.only else fault.device == options.device)
        and options.kind in (None, fault.kind)
    ]


def settings(device: str) -> dict[str, str]:
    """CUDA for this machine's card alone, so that a fault's file is compiled once."""
    if device == "cpu":
        return {"FASTOPS_CUDA": "none"}
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("mutants: --device cuda needs a GPU")
    major, minor = torch.cuda.get_device_capability()
    return {"FASTOPS_CUDA": str(torch.version.cuda).partition(".")[0], "FASTOPS_CUDA_ARCHS": f"{major}{minor}"}


def proved(fault: Fault, package: Path, options: argparse.Namespace) -> Outcome:
    """The quick selftest and, where that passes, the whole one, on the package with the fault, which then goes."""
    ops = () if options.whole_ops else fault.ops
    seconds = 0.0
    try:
        for verdict in () if options.compile else ("quick", "whole")[: 1 if options.quick else 2]:
            run = selftest(package, fault.device, ops, verdict == "quick", options.time)
            seconds += run.seconds
            if not run.passed:
                return Outcome(fault.name, fault.kind, verdict, run.found, seconds)
    finally:
        shutil.rmtree(package)
    if options.compile:
        return Outcome(fault.name, fault.kind, "compiles")
    return Outcome(fault.name, fault.kind, "PASSED", fault.wrong, seconds)


def attempts(faults: Sequence[Fault], copy: Copy, options: argparse.Namespace) -> Iterator[Outcome]:
    """Of each fault, as they end: one build at a time, and so many runs on packages that it made."""
    under_way = set[Future[Outcome]]()
    with ThreadPoolExecutor(options.jobs) as pool:
        try:
            for fault in faults:
                if len(under_way) == options.jobs:
                    ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in ended)
                try:
                    package = copy.planted(fault)
                except BuildError as error:
                    yield Outcome(fault.name, fault.kind, "ERROR", f"does not compile: {error}")
                    continue
                under_way.add(pool.submit(proved, fault, package, options))
            yield from (future.result() for future in as_completed(under_way))
        except BaseException:  # Ctrl-C
            stop()
            raise


def without_fault(faults: Sequence[Fault], copy: Copy, options: argparse.Namespace) -> Run:
    """A selftest that fails by itself finds nothing."""
    if not origin(copy.package).is_relative_to(copy.package):
        return Run(False, f"import fastops does not find {copy.package}", 0)
    ops = () if options.whole_ops else sorted({op for fault in faults for op in fault.ops})
    seconds = 0.0
    for quick in (True,) if options.quick else (True, False):
        run = selftest(copy.package, options.device, ops, quick, 3 * options.time)
        seconds += run.seconds
        if not run.passed:
            return run._replace(seconds=seconds)
    return Run(True, "", seconds)


def summary(outcomes: Sequence[Outcome]) -> str:
    counts = Counter((o.kind, o.verdict) for o in outcomes)
    lines = []
    for kind, what in KINDS.items():
        of_kind = {verdict: counts[kind, verdict] for verdict in ("quick", "whole", "PASSED")}
        if all_of_kind := sum(of_kind.values()):
            found = ", ".join(f"{count} {verdict}" for verdict, count in of_kind.items() if count)
            lines.append(f"kind {kind}, {what}: {all_of_kind} planted, {found}")
    total = Counter(o.verdict for o in outcomes)
    found = total["quick"] + total["whole"]
    lines.append(f"{found} of {found + total['PASSED']} found, {total['quick']} of them by --quick")
    if total["ERROR"]:
        lines.append(f"{total['ERROR']} could not be planted")
    return "\n".join(lines)


def main(
    argv: list[str] | None = None,
    faults: Sequence[Fault] = FAULTS,
    root: Path = ROOT,
    folder: Path = ROOT / "build" / "mutants",
) -> int:
    options = parser().parse_args(argv)
    if lost := wrong(faults, root):
        print(*lost, sep="\n")
        return 2
    here = chosen(options, faults)
    if options.list:
        for fault in here:
            print(f"{fault.name}: {fault.wrong} ({fault.file}; kind {fault.kind})")
    if options.list or options.check:
        return 0

    device = here[0].device if here else options.device
    copy = Copy(root, folder / device, settings(device))
    print(f"{len(here)} faults on {device}, in {copy.folder}; the first build compiles everything", flush=True)
    try:
        copy.prepare()
    except BuildError as error:
        print(f"ERROR: the tree does not build: {error}")
        return 2
    if not options.compile:
        run = without_fault(here, copy, options)
        print(
            f"{'passes' if run.passed else 'FAILS':<8} {run.seconds:6.1f} s  without a fault  {run.found}", flush=True
        )
        if not run.passed:
            return 2

    outcomes: list[Outcome] = []
    for outcome in attempts(here, copy, options):
        outcomes.append(outcome)
        print(outcome.line(), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps([asdict(o) for o in outcomes], indent=1) + "\n")
    print(summary(outcomes))
    verdicts = {o.verdict for o in outcomes}
    return 2 if "ERROR" in verdicts else int("PASSED" in verdicts)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # as after Ctrl-C, the copy is put back
    sys.exit(main())
