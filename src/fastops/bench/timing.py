"""Repeated measurements, taken in turn, and what is kept of them. All times are in seconds."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat

ROUNDS = 15

Clock = Callable[[], float]
Sampler = Callable[[], float]  # one measurement


@dataclass(frozen=True)
class Statistics:
    """Of the samples of one implementation: the median, the quartiles around it, the best."""

    median: float
    low: float
    high: float
    best: float

    @property
    def spread(self) -> float:
        """(upper - lower quartile) / median; a smaller difference between two implementations is noise."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @staticmethod
    def of(samples: Sequence[float]) -> Statistics:
        if len(samples) < 2:
            raise ValueError(f"statistics need at least 2 samples, got {len(samples)}")
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Statistics(median, low, high, min(samples))


def interleaved(samplers: Mapping[str, Sampler], rounds: int = ROUNDS) -> dict[str, Statistics]:
    """A sample of each in every round, so that what disturbs the machine for a while disturbs all alike.

    Every second round goes backwards: what one leaves in the caches is not always met by the same other.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        order = list(samplers)
        for _ in range(rounds):
            for name in order:
                samples[name].append(samplers[name]())
            order.reverse()
    finally:
        if was_enabled:
            gc.enable()
    return {name: Statistics.of(values) for name, values in samples.items()}


def repeated(
    call: Callable[[], object],
    at_least: float,
    clock: Clock = time.perf_counter,
    after: Callable[[], object] = lambda: None,
) -> Sampler:
    """Samples of so many calls that together they take ``at_least``; a sample is the time of one.

    An untimed call goes first, which has in the caches what the others find there. ``after`` follows the clock's second
    reading: work that was started may end there.
    """

    def elapsed(calls: int) -> float:
        call()
        start = clock()
        for _ in repeat(None, calls):
            call()
        taken = clock() - start
        after()
        return taken

    calls = 1
    while (taken := elapsed(calls)) < at_least:
        calls = max(2 * calls, int(calls * min(at_least / taken, 100)) if taken > 0 else 0)
    return lambda: elapsed(calls) / calls


def single(call: Callable[[], object], before: Callable[[], object], clock: Clock = time.perf_counter) -> Sampler:
    """Samples of one call, each after an untimed ``before``."""

    def sample() -> float:
        before()
        start = clock()
        call()
        return clock() - start

    return sample
