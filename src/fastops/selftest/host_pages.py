"""On the CPU: pages without access (``mprotect``)."""

from __future__ import annotations

import ctypes
import mmap
import signal
from ctypes import CFUNCTYPE, c_int, c_int64, c_size_t, c_void_p

import torch
from torch import Tensor

from .page_memory import MOST, ROOM, Pages, address, protect
from .poison import BYTE


class HostPages(Pages):
    """An access is noted, and then let happen."""

    def __init__(self, device: torch.device) -> None:
        room, guard = ROOM, 1 << 16
        self._map = mmap.mmap(-1, MOST * (room + guard) + guard)
        self._handler = CFUNCTYPE(None, c_int, c_void_p, c_void_p)(self._caught)
        action = (c_int64 * 19)(address(self._handler), *[0] * 16, 4)  # a mask of 16 words, SA_SIGINFO
        ctypes.CDLL(None).sigaction(int(signal.SIGSEGV), action, None)
        self._down = True
        super().__init__(device, room, guard, ctypes.addressof(ctypes.c_char.from_buffer(self._map)))

    def _caught(self, number: int, info: int, context: int) -> None:
        """Any other access than to a guard ends the process."""
        touched = c_size_t.from_address(info + 16).value  # si_addr
        k, at = divmod(touched - self._begin, self._room + self._guard)
        if not 0 <= k <= MOST or at >= self._guard:
            ctypes.CDLL(None).signal(number, None)
            return
        protect(touched - at, self._guard, mmap.PROT_READ | mmap.PROT_WRITE)
        self._down = True
        where = f"{at} bytes behind" if self._at_end else f"{self._guard - at} bytes before"
        self.faults.append(f"{where} {(self._names[k - self._at_end :] or ['nothing'])[0]}")

    def _put_up(self) -> None:
        for k in range(MOST + 1) if self._down else ():
            protect(self._begin + k * (self._room + self._guard), self._guard, 0)
        self._down = False

    def _fill(self, place: int, size: int) -> None:
        ctypes.memset(place, BYTE, size)

    def _tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        return torch.frombuffer((ctypes.c_char * size).from_address(place), dtype=dtype)

    def _finish(self) -> None:
        pass
