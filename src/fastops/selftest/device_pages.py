"""On a GPU: addresses without memory behind them (``cuMemAddressReserve``)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor

from .page_memory import MOST, ROOM, Pages
from .poison import BYTE


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
    """An access ends the process's use of the GPU.

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
