"""Starts the processes, runs the operators on all of them one after the other, and hears from the first what was found.

All do the same calls in the same order. Each says in a file what it is at, for the case that one of them hangs or dies.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import ProcessContext, ProcessException

from ...cases import Case, by_name
from ..checks import Outcome
from ..runner import Result, Step, name_of
from ..target import NotThereError, why_no_cuda
from ..workers import START_METHOD
from .checks import Checker, Found, outcomes
from .placements import EFFORTS
from .processes import start

SILENCE = 120.0  # seconds without a word: then a process hangs


class Plan(NamedTuple):
    ops: list[str]
    dtypes: list[torch.dtype]
    device: str
    processes: int
    quick: bool

    @property
    def path(self) -> str:
        return f"{self.processes} x {self.device}, {'nccl' if self.device == 'cuda' else 'gloo'}"


def planned(cases: Sequence[Case], dtypes: list[torch.dtype], device: str | None, processes: int, quick: bool) -> Plan:
    device = device or "cpu"
    if device not in ("cpu", "cuda"):
        raise NotThereError(f"device must be cpu or cuda with --distributed, got {device!r}")
    if processes < 2:
        raise NotThereError(f"--distributed must be 2 processes or more, got {processes}")
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise NotThereError("--distributed: this PyTorch has no gloo")
    if device == "cuda":
        if reason := why_no_cuda():
            raise NotThereError(f"device cuda: {reason}")
        if not distributed.is_nccl_available():
            raise NotThereError("--distributed with device cuda: this PyTorch has no NCCL")
        if processes > (count := torch.cuda.device_count()):
            raise NotThereError(f"--distributed {processes} with device cuda: this machine has {count} GPU(s)")
    return Plan([case.name for case in cases], dtypes, device, processes, quick)


def steps_of(plan: Plan) -> Iterator[Step]:
    """As they come; where processes hang or die, the last is the failure of what they were at."""
    receiver, sender = multiprocessing.get_context(START_METHOD).Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="fastops-selftest-", ignore_cleanup_errors=True) as name, receiver:
        folder = Path(name)
        places = [folder / f"place-{rank}" for rank in range(plan.processes)]
        context = start(functools.partial(_work, plan, places, sender), plan.processes, folder, device=plan.device)
        sender.close()
        begun = Step(plan.ops[0], plan.path, name_of(plan.dtypes[0]))
        try:
            for step in _heard(receiver, context, places):
                begun = begun if step.results else step
                yield step
        except (ProcessException, TimeoutError) as error:
            why = _why(error, context, places)
            failure = Result(begun.op, plan.path, begun.dtype, "processes", False, None, None, why, 0.0)
            yield begun._replace(results=[failure])
        finally:
            for process in context.processes:
                process.kill()
                process.join()


def _heard(receiver: Connection, context: ProcessContext, places: Sequence[Path]) -> Iterator[Step]:
    seen, last = _times(places), time.monotonic()
    ended = False
    while not ended:
        ended = context.join(timeout=0)  # raises what a process did
        try:
            while receiver.poll(0.2):
                yield receiver.recv()
        except EOFError:  # the first process is at its end
            time.sleep(0.1)
        if (now := _times(places)) != seen:
            seen, last = now, time.monotonic()
        elif time.monotonic() - last > SILENCE:
            raise TimeoutError(f"nothing has happened for {SILENCE:g} s: a process hangs")


def _times(places: Sequence[Path]) -> list[int]:
    return [place.stat().st_mtime_ns if place.exists() else 0 for place in places]


def _why(error: Exception, context: ProcessContext, places: Sequence[Path]) -> str:
    """Who died, of which the others' errors come, else the error's last line; and where each process was."""
    codes = [process.exitcode for process in context.processes]
    died = [f"process {rank} ended with exit code {code}" for rank, code in enumerate(codes) if code not in _NOT_DEAD]
    said = str(error).strip().splitlines()[-1].strip()
    at = [place.read_text() if place.exists() else "its start" for place in places]
    return "; ".join([*(died or [said]), *(f"process {rank} was at {where}" for rank, where in enumerate(at))])


# It is at its end, has raised, is alive, or was ended because of another.
_NOT_DEAD = (0, 1, None, -signal.SIGTERM)


def _work(plan: Plan, places: Sequence[Path], sender: Connection, rank: int) -> None:
    # That gloo has no all-to-all, for which torch takes another collective, is nothing to its caller.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    mesh, place = init_device_mesh(plan.device, (plan.processes,)), places[rank]
    first, other = EFFORTS[plan.quick]
    for case in map(by_name().__getitem__, plan.ops):
        results: list[Result] = []
        for k, dtype in enumerate(d for d in plan.dtypes if d in case.dtypes):
            if rank == 0:
                sender.send(Step(case.name, plan.path, name_of(dtype)))
            begin = time.perf_counter()
            checker = Checker(case, dtype, mesh, other if k else first)
            of_all = _gathered(checker, plan.processes, place)
            if rank == 0:
                results += _results(case, dtype, plan, of_all, time.perf_counter() - begin)
        if rank == 0:
            sender.send(Step(case.name, plan.path, results=results))


def _gathered(checker: Checker, processes: int, place: Path) -> list[Found]:
    """What all processes found, for the first."""
    of = f"{checker.case.name} {name_of(checker.dtype)}"

    def at(where: str) -> None:
        place.write_text(f"{of}, {where}")

    # Of other dtypes a product may warn, and DTensor of what gloo does not have.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = checker.run(at)
    at("its end")
    of_all: list[Any] = [None] * processes
    distributed.gather_object(found, of_all if distributed.get_rank() == 0 else None)
    return of_all


def _results(case: Case, dtype: torch.dtype, plan: Plan, of_all: list[Found], seconds: float) -> list[Result]:
    found: list[Outcome] = list(outcomes(case, dtype, of_all))
    return [
        Result(
            op=case.name,
            path=plan.path,
            dtype=name_of(dtype),
            check=outcome.check,
            ok=outcome.ok,
            error=outcome.error,
            bound=outcome.bound,
            detail=outcome.detail,
            seconds=seconds / len(found),
        )
        for outcome in found
    ]
