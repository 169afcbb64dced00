"""Time of whole calls on a GPU, for ops that run for milliseconds.

    time = (end - start) / sets

between two events around calls on several input sets. Some peers of such ops read a number back to the host in each
call, which does not go into a CUDA graph. An untimed call goes first: launches hide behind it, and the allocator has
found the place that the others take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .cuda_graph import WARM_UPS


class Events:
    """Calls on the current stream, each without what the ones before returned."""

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls = calls
        for _ in range(WARM_UPS):
            calls[0]()

    def __call__(self) -> float:
        """Seconds of one call."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._calls[-1]()
        start.record()
        for call in self._calls:
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / len(self._calls)
