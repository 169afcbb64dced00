"""Processes of this machine that are one group: on the CPU by gloo, with a GPU each by NCCL."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessContext, start_processes

from ..workers import START_METHOD

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # of which gloo collects what was found
# Imported once, by the server that processes are forked from: each would take seconds for it, and torch more at its
# first collective.
PRELOADED = ("torch.distributed.tensor", "torch._dynamo", "fastops")


def start(
    run: Callable[[int], None],
    processes: int,
    folder: Path,
    *,
    device: str = "cpu",
    preload: Iterable[str] = (),
) -> ProcessContext:
    """``run(rank)`` in as many processes, which meet in ``folder``."""
    multiprocessing.set_forkserver_preload([*PRELOADED, *preload])
    context = start_processes(
        _process,
        (run, processes, device, str(folder / "rendezvous")),
        nprocs=processes,
        join=False,
        daemon=True,
        start_method=START_METHOD,
    )
    assert context is not None  # join=False
    return context


def _process(rank: int, run: Callable[[int], None], processes: int, device: str, file: str) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    distributed.init_process_group(BACKENDS[device], init_method=f"file://{file}", rank=rank, world_size=processes)
    try:
        run(rank)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
