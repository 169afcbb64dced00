"""On the CPU: pages without access (``mprotect``)."""

from __future__ import annotations

import ctypes
import mmap
import signal
from ctypes import CFUNCTYPE, c_int, c_int64, c_size_t, c_void_p

import torch
from torch import Tensor

from ..cases import Make, by_name
from .page_memory import MOST, ROOM, Pages, address, loaded, protect, redirect
from .poison import BYTE

_NEW, _DELETE = CFUNCTYPE(c_void_p, c_size_t), CFUNCTYPE(None, c_void_p)
_ALIGNED = 16  # bytes, of what new gives


class HostPages(Pages):
    """An access is noted, and then let happen."""

    def __init__(self, device: torch.device) -> None:
        room, guard = ROOM["cpu"], 1 << 16
        self._map = mmap.mmap(-1, MOST * (room + guard) + guard)
        self._handler = CFUNCTYPE(None, c_int, c_void_p, c_void_p)(self._caught)
        action = (c_int64 * 19)(address(self._handler), *[0] * 16, 4)  # a mask of 16 words, SA_SIGINFO
        ctypes.CDLL(None).sigaction(int(signal.SIGSEGV), action, None)
        self._down = True
        super().__init__(device, room, guard, ctypes.addressof(ctypes.c_char.from_buffer(self._map)))
        self._replace_scratch()

    def _replace_scratch(self) -> None:
        """C++'s new and delete of arrays, by which our library gets what it needs for a call."""
        for call in by_name()["rms_norm"].raw(Make(self._device, torch.float32), 3, 5):
            call()  # an address may be looked up at the first call
        library = loaded("libstdc++.so")
        self._new, self._delete = _NEW(("_Znam", library)), _DELETE(("_ZdaPv", library))
        self._our_new, self._our_delete = _NEW(self._scratch), _DELETE(self._drop)
        redirect(self._new, self._our_new)
        redirect(self._delete, self._our_delete)

    def _scratch(self, size: int) -> int:
        size = -(-size // _ALIGNED) * _ALIGNED
        if not self._allocates or not self._has_room(size):
            return int(self._new(size))
        place = self._place(size, "scratch")
        self._fill(place, size)
        return place

    def _drop(self, place: int | None) -> None:
        if not 0 <= (place or 0) - self._begin < len(self._map):
            self._delete(place)

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
