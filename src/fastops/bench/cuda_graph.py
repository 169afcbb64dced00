"""Kernel time on a GPU: calls over several input sets, captured into one CUDA graph and replayed.

    time = (end - start) / sets

between two events around a replay. A graph has no Python, no dispatcher and no autograd engine in it, so that every
implementation is left with its kernels, and the gaps between them that the GPU makes itself. Each timed replay follows
an untimed one: the launch of the graph hides behind it, and the caches hold what a steady stream of work leaves there.
Outputs live as long as the graph, each set's in memory of its own, so that none is still in the cache from the set
before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .work import RefusedError, said

WARM_UPS = 3  # the first compiles, loads modules and tunes


class Replay:
    """Calls that were made on ``stream``, backward ones included: autograd runs a node where its forward ran."""

    def __init__(self, calls: Sequence[Callable[[], object]], stream: torch.cuda.Stream) -> None:
        self._calls = calls  # with all they hold: the graph reads the memory of inputs and saved tensors
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                calls[0]()
        torch.cuda.synchronize(stream.device)
        self._graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(self._graph, stream=stream):
                self.outputs = [call() for call in calls]
        except Exception as error:
            # What ends the capture raises an error of its own over the one that broke it.
            raise RefusedError(f"does not go into a CUDA graph: {said(error.__context__ or error)}") from error

    def __call__(self) -> float:
        """Seconds of one call."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._graph.replay()
        start.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / len(self._calls)
