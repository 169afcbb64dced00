"""Shares the targets out among processes; where a fault ends or stops one, the target fails, and another begins."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import torch

from ..cases import by_name
from . import guarded
from .aten_case import PREFIX, aten_case
from .checks import threads
from .runner import Group, Result, Step, failure_of, run, steps
from .target import Path, Target, on_path

START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
MOST = 8
SILENCE = 5.0 * guarded.SILENCE  # seconds for an operator in one dtype; guard pages wait for each op that hangs
_TARGETS_A_PROCESS = 6  # that are worth the seconds in which a process imports torch
OF_A_GPU = 7 << 30  # bytes, with the process of guard pages, which holds one of them


class _Task(NamedTuple):
    """A target that can be sent: a case's functions cannot."""

    op: str
    dtype: torch.dtype
    path: Path
    quick: bool
    aten: bool
    main: bool
    first: bool

    def target(self) -> Target:
        case = on_path(by_name()[self.op], self.path)
        if self.aten:
            found = aten_case(case, self.path.device)
            assert found
            case = found
        return Target(case, self.dtype, self.path, self.quick, self.aten, self.main, self.first)


def processes_for(groups: Sequence[Group], wanted: int | None) -> int:
    """1: the targets are run in this process."""
    if wanted is not None:
        return wanted
    targets = sum(len(group) for _, _, group in groups)
    gpus = {path.device for _, path, _ in groups if path.device.type == "cuda"}
    room = [torch.cuda.get_device_properties(gpu).total_memory // OF_A_GPU for gpu in gpus]
    return max(1, min(MOST, _cores(), targets // _TARGETS_A_PROCESS, *room))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared_steps(groups: Sequence[Group], processes: int) -> Iterator[Step]:
    """:func:`fastops.selftest.runner.steps`, of so many processes."""
    # A process that has used CUDA or OpenMP cannot be forked; one that has only imported can, and does it for all.
    context = multiprocessing.get_context(START_METHOD)
    context.set_forkserver_preload([__name__])
    share = max(1, _cores() // processes)
    idle: queue.SimpleQueue[ProcessPoolExecutor] = queue.SimpleQueue()
    for _ in range(processes):
        idle.put(ProcessPoolExecutor(1, context))

    def work(target: Target) -> list[Result]:
        process = idle.get()
        results, usable = [failure_of(target, "process", "the process that ran this was ended by it")], False
        try:
            with contextlib.suppress(BrokenProcessPool):
                pid, found = process.submit(os.getpid), process.submit(_work, _task(target), share)
                if wait([found], SILENCE).done:
                    results, usable = found.result()
                else:
                    os.kill(pid.result(), signal.SIGKILL)
                    results = [failure_of(target, "process", f"no answer in {SILENCE:g} seconds")]
            return results
        finally:
            if not usable:
                process.shutdown()
                process = ProcessPoolExecutor(1, context)
            idle.put(process)

    with ThreadPoolExecutor(processes) as pool:
        yield from steps(groups, pool.map(work, (target for _, _, group in groups for target in group)))
    for _ in range(processes):
        idle.get().shutdown()


def _task(target: Target) -> _Task:
    return _Task(
        target.case.name.removeprefix(PREFIX),
        target.dtype,
        target.path,
        target.quick,
        target.aten,
        target.main,
        target.first,
    )


def _work(task: _Task, share: int) -> tuple[list[Result], bool]:
    """Results, and whether the process can go on: behind an error of a GPU nothing runs there any more.

    A GPU's targets have ``share`` threads for their truths: more threads than cores wait for one another. The CPU's
    have torch's own number, which is what its kernels are called with.
    """
    target = task.target()
    on_gpu = task.path.device.type == "cuda"
    with threads(min(share, torch.get_num_threads())) if on_gpu else contextlib.nullcontext():
        results = list(run(target))
    if on_gpu:
        try:
            torch.cuda.synchronize(task.path.device)
            torch.cuda.empty_cache()  # the other processes want memory as well
        except RuntimeError as error:
            return [*results, failure_of(target, "process", str(error).partition("\n")[0])], False
    return results, True
