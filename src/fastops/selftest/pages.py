"""The process whose tensors end, or begin, at a page that may not be touched: what reads or writes outside is caught.

Arguments of raw ops, and all that these allocate, lie there. It reads requests and answers them, a line each, and says
in the file whose descriptor it gets what it is at, for the case that a null pointer ends it.
"""

from __future__ import annotations

import ctypes
import functools
import json
import mmap
import os
import random
import signal
import sys
from collections.abc import Iterable
from ctypes import CFUNCTYPE, POINTER, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..cases import Layout, Make, RawCall, by_name, row_slice, transposed
from .checks import IN_MEMORY_ORDER, argument_name, is_statistic, same_bits
from .margins import raw_calls, results, span, with_tensors
from .poison import BYTE

ROOM, GUARD, MOST = 1 << 21, 1 << 16, 32  # bytes of a tensor, and between two; tensors of a call
# Whether tensors end at the guard, or begin there; how those of two dimensions or more lie.
WAYS: tuple[tuple[bool, Layout | None], ...] = ((True, None), (False, None), (True, row_slice), (True, transposed))
SHIM = "aoti_torch_empty_strided"  # torch's C function by which every op of ours allocates
_ALLOCATE = CFUNCTYPE(c_int, c_int64, POINTER(c_int64), POINTER(c_int64), c_int, c_int, c_int, c_void_p)
_WRAP = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_int64), POINTER(c_int64), c_int64, *[c_int] * 3, c_void_p)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


class Pages:
    """Memory for the tensors of one call at a time."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._map = mmap.mmap(-1, MOST * (ROOM + GUARD) + GUARD)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._names: list[str] = []
        self._at_end = self._allocates = False
        self.faults = ["none of the guards is up"]
        self._handler = CFUNCTYPE(None, c_int, c_void_p, c_void_p)(self._caught)
        action = (c_int64 * 19)(_address(self._handler), *[0] * 16, 4)  # a mask of 16 words, SA_SIGINFO
        self._libc.sigaction(int(signal.SIGSEGV), action, None)
        self._replace_shim()

    def _protect(self, begin: int, size: int, access: int) -> None:
        if self._libc.mprotect(c_void_p(begin), c_size_t(size), access):
            raise OSError("mprotect is refused")

    def _caught(self, number: int, info: int, context: int) -> None:
        """Notes an access to a guard, and lets it happen. Any other ends the process."""
        address = c_size_t.from_address(info + 16).value  # si_addr
        k, at = divmod(address - self._begin, ROOM + GUARD)
        if not 0 <= k <= MOST or at >= GUARD:
            self._libc.signal(number, None)
            return
        self._protect(address - at, GUARD, mmap.PROT_READ | mmap.PROT_WRITE)
        where = f"{at} bytes behind" if self._at_end else f"{GUARD - at} bytes before"
        self.faults.append(f"{where} {(self._names[k - self._at_end :] or ['nothing'])[0]}")

    def _replace_shim(self) -> None:
        """Where our library keeps the address of torch's function it gets ours."""
        square = RawCall("square", (torch.ones(1),))
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
                    self._protect(begin, end - begin, mmap.PROT_READ | mmap.PROT_WRITE)
                    c_size_t.from_address(begin + at).value = _address(self._ours)
        self.run(square, {}, True)
        if not self._names:
            raise OSError(f"{SHIM} cannot be replaced")

    def _allocate(self, dims: int, sizes: Any, strides: Any, dtype: int, kind: int, index: int, result: int) -> int:
        size = self._size(dtype) * (1 + sum((sizes[k] - 1) * strides[k] for k in range(dims)))
        if not self._allocates or 0 in sizes[:dims]:
            return int(self._torchs(dims, sizes, strides, dtype, kind, index, result))
        place = self._place(size, f"allocation of {sizes[:dims]}")
        ctypes.memset(place, BYTE, size)
        return int(self._wrap(place, dims, sizes, strides, 0, dtype, kind, index, result))

    def _place(self, size: int, name: str) -> int:
        if size > ROOM or len(self._names) == MOST:
            raise ValueError(f"no room for {name}")
        begin = self._begin + len(self._names) * (ROOM + GUARD) + GUARD
        self._names.append(name)
        return begin + ROOM - size if self._at_end else begin

    def _put(self, x: Tensor, name: str) -> Tensor:
        """A copy with the same strides."""
        size = span(x)
        memory = (ctypes.c_char * size).from_address(self._place(size, name))
        return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride()).copy_(x)

    def run(self, call: RawCall, tensors: dict[int, Tensor], at_end: bool) -> tuple[Tensor, ...]:
        """Ordinary copies of the results that a call has of these of its arguments."""
        for k in range(MOST + 1) if self.faults else ():
            self._protect(self._begin + k * (ROOM + GUARD), GUARD, 0)
        self.faults.clear()
        self._names.clear()
        self._at_end = at_end
        there = with_tensors(call, {k: self._put(x, argument_name(call.op, k)) for k, x in tensors.items()})
        self._allocates = True
        try:
            return tuple(x.clone() for x in results(there))
        finally:
            self._allocates = False


@functools.lru_cache(4)  # an op's dtypes, for the next level
def _calls(op: str, dtype: str, quick: bool) -> list[tuple[RawCall, str]]:
    return list(raw_calls(by_name()[op], Make("cpu", getattr(torch, dtype)), quick))


def touched(pages: Pages, call: RawCall, ways: Iterable[tuple[bool, Layout | None]] = WAYS) -> str:
    """How a call touches what is outside of its tensors, or other bits that come of it."""
    found = []
    tensors = {k: x for k, x in enumerate(call.args) if isinstance(x, Tensor) and x.numel()}
    for at_end, layout in ways:
        lie = {k: layout(x) for k, x in tensors.items() if layout and x.dim() > 1 and x.numel() < 8192}
        laid_out = {k: x for k, x in lie.items() if not is_statistic(call, k)}
        if laid_out or not layout:
            found.append((layout, pages.run(call, tensors | laid_out, at_end)))
            if pages.faults:
                return pages.faults[0] + (f", {layout.__name__}" if layout else "")
    expected = results(call)  # last: what is written outside of ordinary tensors may end the process
    for layout, outputs in found if call.row_outputs else ():  # else by a GEMM of torch's, whose bits are its own
        same = [j for j, out in enumerate(outputs) if same_bits(out, expected[j])]
        if not all(j in same or (layout and (call.op, j) in IN_MEMORY_ORDER) for j in range(len(expected))):
            return "other bits" + (f", {layout.__name__}" if layout else "")
    return ""


def main() -> None:
    answers, place = os.fdopen(os.dup(1), "w"), int(sys.argv[1])
    os.dup2(2, 1)  # of whatever prints
    torch.set_grad_enabled(False)
    try:
        pages = Pages()
    except (OSError, AttributeError, StopIteration) as error:
        for _ in sys.stdin:
            print(json.dumps(str(error)), file=answers, flush=True)
    for line in sys.stdin:
        op, dtype, isa, quick, without = json.loads(line)
        _C.set_isa(isa)
        found: dict[str, str] = {}
        chance = random.Random(dtype)
        for call, text in _calls(op, dtype, quick):
            if call.op not in {*found, *without}:
                os.pwrite(place, f"{text:<200}".encode(), 0)
                if what := touched(pages, call, (WAYS[0], chance.choice(WAYS[1:])) if quick else WAYS):
                    found[call.op] = f"{text}: {what}"
        print(json.dumps(list(found.values())), file=answers, flush=True)


if __name__ == "__main__":
    main()
