"""Memory for a call's tensors, each of which ends, or begins, at memory that may not be touched."""

from __future__ import annotations

import ctypes
import mmap
import signal
import sys
from abc import ABC, abstractmethod
from ctypes import CFUNCTYPE, POINTER, byref, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cases import RawCall
from .checks import argument_name
from .margins import results, span, with_tensors
from .poison import BYTE

ROOM, MOST = 1 << 22, 32  # bytes of a tensor, and tensors of a call
SHIM = "aoti_torch_empty_strided"  # torch's C function by which every op of ours allocates
_ALLOCATE = CFUNCTYPE(c_int, c_int64, POINTER(c_int64), POINTER(c_int64), c_int, c_int, c_int, c_void_p)
_WRAP = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_int64, *[c_int] * 3, c_void_p)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def _protect(begin: int, size: int, access: int) -> None:
    if ctypes.CDLL(None).mprotect(c_void_p(begin), c_size_t(size), access):
        raise OSError("mprotect is refused")


class Pages(ABC):
    """For one call at a time: a guard, then ``MOST`` times room for a tensor and the next guard.

    What has no room lies in ordinary memory.
    """

    def __init__(self, device: torch.device, room: int, guard: int, begin: int) -> None:
        self.faults: list[str] = []
        self._device, self._room, self._guard, self._begin = device, room, guard, begin
        self._names: list[str] = []
        self._at_end = self._allocates = False
        self._replace_shim()

    @abstractmethod
    def _fill(self, place: int, size: int) -> None:
        """Bytes that are no result of ours."""

    @abstractmethod
    def _tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        """What begins there, of one dimension."""

    @abstractmethod
    def _put_up(self) -> None:
        """The guards that have come down."""

    @abstractmethod
    def _finish(self) -> None:
        """Whatever the call has begun."""

    def _replace_shim(self) -> None:
        """Where our library keeps the address of torch's function it gets ours."""
        square = RawCall("square", (torch.ones(1, device=self._device),))
        square()  # an address may be looked up at the first call
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        libtorch = ctypes.CDLL(next(words[-1] for words in maps if words[-1].endswith("/libtorch_cpu.so")))
        self._torchs, self._ours = _ALLOCATE((SHIM, libtorch)), _ALLOCATE(self._allocate)
        self._wrap = _WRAP(("aoti_torch_create_tensor_from_blob", libtorch))
        self._size = CFUNCTYPE(c_size_t, c_int)(("aoti_torch_dtype_element_size", libtorch))
        old = _address(self._torchs).to_bytes(8, sys.byteorder)
        for words in maps:
            if words[-1].endswith("/libfastops.so") and words[1] in ("r--p", "rw-p"):
                begin, end = (int(text, 16) for text in words[0].split("-"))
                if (at := ctypes.string_at(begin, end - begin).find(old)) >= 0:
                    _protect(begin, end - begin, mmap.PROT_READ | mmap.PROT_WRITE)
                    c_size_t.from_address(begin + at).value = _address(self._ours)
        self.run(square, {}, True)
        if not self._names:
            raise OSError(f"{SHIM} cannot be replaced")

    def _allocate(self, dims: int, sizes: Any, strides: Any, dtype: int, kind: int, index: int, result: int) -> int:
        """As torch's; 1 is an error, since nobody sees an exception of a function that C calls."""
        size = self._size(dtype) * (1 + sum((sizes[k] - 1) * strides[k] for k in range(dims)))
        if not self._allocates or 0 in sizes[:dims] or not self._has_room(size):
            return int(self._torchs(dims, sizes, strides, dtype, kind, index, result))
        place = self._place(size, f"allocation of {sizes[:dims]}")
        try:
            self._fill(place, size)
        except OSError:
            return 1
        return int(self._wrap(place, dims, sizes, strides, 0, dtype, kind, index, result))

    def _has_room(self, size: int) -> bool:
        return size <= self._room and len(self._names) < MOST

    def _place(self, size: int, name: str) -> int:
        begin = self._begin + len(self._names) * (self._room + self._guard) + self._guard
        self._names.append(name)
        return begin + self._room - size if self._at_end else begin

    def _put(self, x: Tensor, name: str) -> Tensor:
        """A copy with the same strides."""
        size = span(x)
        if not self._has_room(size):
            return x
        return self._tensor(self._place(size, name), size, x.dtype).as_strided(x.shape, x.stride()).copy_(x)

    def run(self, call: RawCall, tensors: dict[int, Tensor], at_end: bool) -> tuple[Tensor, ...]:
        """Ordinary copies of the results that a call has of these of its arguments."""
        self._put_up()
        self.faults.clear()
        self._names.clear()
        self._at_end = at_end
        there = with_tensors(call, {k: self._put(x, argument_name(call.op, k)) for k, x in tensors.items()})
        self._allocates = True
        try:
            outputs = tuple(x.clone() for x in results(there))
            self._finish()
            return outputs
        finally:
            self._allocates = False


class HostPages(Pages):
    """Pages without access (``mprotect``). An access is noted, and then let happen."""

    def __init__(self, device: torch.device) -> None:
        room, guard = ROOM, 1 << 16
        self._map = mmap.mmap(-1, MOST * (room + guard) + guard)
        self._handler = CFUNCTYPE(None, c_int, c_void_p, c_void_p)(self._caught)
        action = (c_int64 * 19)(_address(self._handler), *[0] * 16, 4)  # a mask of 16 words, SA_SIGINFO
        ctypes.CDLL(None).sigaction(int(signal.SIGSEGV), action, None)
        self._down = True
        super().__init__(device, room, guard, ctypes.addressof(ctypes.c_char.from_buffer(self._map)))

    def _caught(self, number: int, info: int, context: int) -> None:
        """Any other access than to a guard ends the process."""
        address = c_size_t.from_address(info + 16).value  # si_addr
        k, at = divmod(address - self._begin, self._room + self._guard)
        if not 0 <= k <= MOST or at >= self._guard:
            ctypes.CDLL(None).signal(number, None)
            return
        _protect(address - at, self._guard, mmap.PROT_READ | mmap.PROT_WRITE)
        self._down = True
        where = f"{at} bytes behind" if self._at_end else f"{self._guard - at} bytes before"
        self.faults.append(f"{where} {(self._names[k - self._at_end :] or ['nothing'])[0]}")

    def _put_up(self) -> None:
        for k in range(MOST + 1) if self._down else ():
            _protect(self._begin + k * (self._room + self._guard), self._guard, 0)
        self._down = False

    def _fill(self, place: int, size: int) -> None:
        ctypes.memset(place, BYTE, size)

    def _tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        return torch.frombuffer((ctypes.c_char * size).from_address(place), dtype=dtype)

    def _finish(self) -> None:
        pass


class _Allocation(ctypes.Structure):
    """The driver's CUmemAllocationProp: memory of a device."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", c_int * 2),
        ("metadata", c_void_p),
        ("flags", c_uint64),
    )


_ON_DEVICE, _READ_AND_WRITE = 1, 3  # CU_MEM_LOCATION_TYPE_DEVICE, and CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class DevicePages(Pages):
    """Addresses of a GPU without memory behind them (``cuMemAddressReserve``). An access ends the process's use of it.

    No vector at an aligned address crosses their bounds, so that what lies in the last vector beside elements of a
    tensor may be read.
    """

    def __init__(self, device: torch.device) -> None:
        torch.ones(1, device=device)  # makes the context
        self._driver = ctypes.CDLL("libcuda.so.1")
        of = _Allocation(type=1, location=(_ON_DEVICE, device.index))
        granularity = c_size_t()
        self._ask("cuMemGetAllocationGranularity", byref(granularity), byref(of), 0)
        guard = granularity.value
        room = -(-ROOM // guard) * guard
        begin = c_uint64()
        size = c_size_t(MOST * (room + guard) + guard)
        self._ask("cuMemAddressReserve", byref(begin), size, c_size_t(0), c_uint64(0), c_uint64(0))
        for k in range(MOST):
            memory, place = c_uint64(), c_uint64(begin.value + k * (room + guard) + guard)
            self._ask("cuMemCreate", byref(memory), c_size_t(room), byref(of), c_uint64(0))
            self._ask("cuMemMap", place, c_size_t(room), c_size_t(0), memory, c_uint64(0))
            access = (c_int * 3)(_ON_DEVICE, device.index, _READ_AND_WRITE)
            self._ask("cuMemSetAccess", place, c_size_t(room), access, c_size_t(1))
        super().__init__(device, room, guard, begin.value)

    def _ask(self, function: str, *arguments: Any) -> None:
        if error := getattr(self._driver, function)(*arguments):
            raise OSError(f"{function} has returned {error}")

    def _put_up(self) -> None:
        pass

    def _fill(self, place: int, size: int) -> None:
        self._ask("cuMemsetD8_v2", c_uint64(place), ctypes.c_ubyte(BYTE), c_size_t(size))

    def _tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        storage = torch._C._construct_storage_from_data_pointer(place, self._device, size)
        return torch.empty(0, dtype=dtype, device=self._device).set_(storage)

    def _finish(self) -> None:
        torch.cuda.synchronize(self._device)
