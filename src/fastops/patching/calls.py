"""Counts of a swapped module's calls: how many it made, and how many of them fastops computed.

Only swaps that may go back to the original function have a count, which the report reads: see ``counts_calls`` of
:class:`fastops.patching.swap.Swap`. A count is two int additions a call, without a lock: threads that run one module at
the same time may lose a few. Code that torch.compile traces must neither read nor write a count, because Dynamo would
guard on its value and compile again at each call.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .swap import Module


@dataclass
class Calls:
    """The calls of one swapped module.

    Attributes:
        made (int): calls of what was swapped. A forward that goes back as a whole counts as one.
        ran (int): those that fastops computed. All others went back to the original.
    """

    made: int = 0
    ran: int = 0


_UNREPORTED = Calls()
# By id of a module that patch swapped, until it is freed. Copies, replicas and pickles of a module have no count.
# A WeakKeyDictionary would take 0.4 us more at each call.
_counts: dict[int, Calls] = {}


class _Thread(threading.local):
    """The count of the swapped module whose forward this thread runs."""

    calls = _UNREPORTED


this_thread = _Thread()


def start_count(module: Module) -> Calls:
    """Return a new count of the module's calls, from now on."""
    key = id(module)
    if key not in _counts:
        weakref.finalize(module, _counts.pop, key, None).atexit = False
    calls = _counts[key] = Calls()
    return calls


def calls_of(module: Module) -> Calls:
    """Return the module's count, or one that no report reads if the module has none."""
    return _counts.get(id(module), _UNREPORTED)


def sum_of(counts: Iterable[Calls]) -> Calls:
    """Return the sum of several counts."""
    found = Calls()
    for calls in counts:
        found.made, found.ran = found.made + calls.made, found.ran + calls.ran
    return found


@contextmanager
def keep_counts(model: Module) -> Iterator[None]:
    """Restore the counts of all modules of a model at the end, because a proof ran the model itself."""
    before = [(calls, calls.made, calls.ran) for calls in map(calls_of, model.modules())]
    try:
        yield
    finally:
        for calls, made, ran in before:
            calls.made, calls.ran = made, ran
