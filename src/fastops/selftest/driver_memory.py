"""A GPU's addresses and the memory behind them, by the CUDA driver's functions for virtual memory."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import torch
from torch import Tensor


class _Allocation(ctypes.Structure):
    """CUmemAllocationProp: memory of a device."""

    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", c_int * 2),
        ("metadata", c_void_p),
        ("flags", c_uint64),
    )


_ON_DEVICE, _READ_AND_WRITE = 1, 3  # CU_MEM_LOCATION_TYPE_DEVICE, and CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class DriverMemory:
    """An access to an address without memory ends the process's use of the GPU. Errors are OSErrors."""

    def __init__(self, device: torch.device) -> None:
        self._device = torch.ones(1, device=device).device  # with its index; makes the context
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._of = _Allocation(type=1, location=(_ON_DEVICE, self._device.index))
        granularity = c_size_t()
        self._ask("cuMemGetAllocationGranularity", byref(granularity), byref(self._of), 0)
        self.granularity = granularity.value

    def _ask(self, function: str, *arguments: Any) -> None:
        if error := getattr(self._driver, function)(*arguments):
            raise OSError(f"{function} has returned {error}")

    def reserve(self, size: int) -> int:
        """Addresses, of which the first is returned."""
        begin = c_uint64()
        self._ask("cuMemAddressReserve", byref(begin), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
        return begin.value

    def back(self, place: int, size: int, times: int = 1) -> None:
        """Memory for them, the same one so many times in a row. Both are multiples of the granularity."""
        memory = c_uint64()
        self._ask("cuMemCreate", byref(memory), c_size_t(size), byref(self._of), c_uint64(0))
        for begin in range(place, place + times * size, size):
            self._ask("cuMemMap", c_uint64(begin), c_size_t(size), c_size_t(0), memory, c_uint64(0))
        access = (c_int * 3)(_ON_DEVICE, self._device.index, _READ_AND_WRITE)
        self._ask("cuMemSetAccess", c_uint64(place), c_size_t(times * size), access, c_size_t(1))
        self._ask("cuMemRelease", memory)  # it stays while it is mapped

    def free(self, place: int, size: int, times: int = 1) -> None:
        """What was reserved, and backed like this, once nothing uses it."""
        torch.cuda.synchronize(self._device)
        for begin in range(place, place + times * size, size):
            self._ask("cuMemUnmap", c_uint64(begin), c_size_t(size))
        self._ask("cuMemAddressFree", c_uint64(place), c_size_t(times * size))

    def fill(self, place: int, byte: int, size: int) -> None:
        """In the default stream, behind what torch has launched there."""
        self._ask("cuMemsetD8_v2", c_uint64(place), ctypes.c_ubyte(byte), c_size_t(size))

    def tensor(self, place: int, size: int, dtype: torch.dtype) -> Tensor:
        """Of no elements, whose storage begins there, of so many bytes."""
        storage = torch._C._construct_storage_from_data_pointer(place, self._device, size)
        return torch.empty(0, dtype=dtype, device=self._device).set_(storage)
