"""Memory that calls allocate: whether the CPU's is recycled or fresh, and how much of a GPU's they take.

A page that the operating system has just given out is filled at its first touch, which on a CPU can take longer than an
operator. ``recycled`` makes glibc keep freed memory for the next call of the same kind, so that no page is new;
``give_back`` returns what is free, so that every page of the next call is.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

# Of malloc.h, with the values that glibc starts with.
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD = -1, 128 * 1024
_M_MMAP_MAX, _MMAP_MAX = -4, 65536


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


@contextmanager
def recycled() -> Iterator[bool]:
    """glibc neither maps large pieces one by one nor trims its heap. False: the C library is another."""
    library = _glibc()
    if library is None:
        yield False
        return
    kept = library.mallopt(_M_MMAP_MAX, 0) and library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield bool(kept)
    finally:
        library.mallopt(_M_MMAP_MAX, _MMAP_MAX)
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def give_back() -> None:
    """All whole pages that are free go back to the operating system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def page_faults(call: Callable[[], object]) -> int | None:
    """First touches of pages during a call, in this process. None: the system does not count them."""
    try:
        import resource
    except ImportError:
        return None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_peak() -> int | None:
    """The most bytes of this process that were in memory at once. None: the system does not tell.

    Not ``ru_maxrss``, which on Linux starts with what the parent had in memory.
    """
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def peak_bytes(call: Callable[[], object], device: torch.device) -> int | None:
    """Most bytes of torch's CUDA allocator during a call beyond those before: results and what lies between.

    None on the CPU, where torch does not count.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = call()  # alive until the peak is read
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    del kept
    return peak
