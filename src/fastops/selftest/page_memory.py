"""Memory for a call's tensors, each of which ends, or begins, at memory that may not be touched."""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import ABC, abstractmethod
from ctypes import CFUNCTYPE, POINTER, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cases import RawCall
from .checks import argument_name
from .margins import results, span

MOST = 32  # tensors of a call
# Bytes of a tensor. A GPU's tables have kernels for many rows, such as two rows of 24 KB a cluster from 528 rows on.
ROOM = {"cpu": 1 << 22, "cuda": 1 << 25}
SHIM = "aoti_torch_empty_strided"  # torch's C function by which every op of ours allocates
_ALLOCATE = CFUNCTYPE(c_int, c_int64, POINTER(c_int64), POINTER(c_int64), c_int, c_int, c_int, c_void_p)
_WRAP = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_int64, *[c_int] * 3, c_void_p)


def address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def protect(begin: int, size: int, access: int) -> None:
    if ctypes.CDLL(None).mprotect(c_void_p(begin), c_size_t(size), access):
        raise OSError("mprotect is refused")


def _maps() -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]


def loaded(library: str) -> ctypes.CDLL:
    found = next((words[-1] for words in _maps() if f"/{library}" in words[-1]), None)
    if found is None:
        raise OSError(f"{library} is not loaded")
    return ctypes.CDLL(found)


def redirect(function: Any, ours: Any) -> None:
    """Where our library keeps a function's address it gets ours."""
    old = address(function).to_bytes(8, sys.byteorder)
    for words in _maps():
        if words[-1].endswith("/libfastops.so") and words[1] in ("r--p", "rw-p"):
            begin, end = (int(text, 16) for text in words[0].split("-"))
            if (at := ctypes.string_at(begin, end - begin).find(old)) >= 0:
                protect(begin, end - begin, mmap.PROT_READ | mmap.PROT_WRITE)
                c_size_t.from_address(begin + at).value = address(ours)


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

    def _replace_shim(self) -> None:
        """Where our library keeps the address of torch's function it gets ours."""
        square = RawCall("square", (torch.ones(1, device=self._device),))
        square()  # an address may be looked up at the first call
        libtorch = loaded("libtorch_cpu.so")
        self._torchs, self._ours = _ALLOCATE((SHIM, libtorch)), _ALLOCATE(self._allocate)
        self._wrap = _WRAP(("aoti_torch_create_tensor_from_blob", libtorch))
        self._size = CFUNCTYPE(c_size_t, c_int)(("aoti_torch_dtype_element_size", libtorch))
        redirect(self._torchs, self._ours)
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
        """Ordinary copies of the results that a call has of these of its arguments.

        A GPU is not waited for: the next call's tensors are written in the same stream, behind this one's kernels.
        """
        self._put_up()
        self.faults.clear()
        self._names.clear()
        self._at_end = at_end
        there = call.with_tensors({k: self._put(x, argument_name(call.op, k)) for k, x in tensors.items()})
        self._allocates = True
        try:
            return tuple(x.clone() for x in results(there))
        finally:
            self._allocates = False
