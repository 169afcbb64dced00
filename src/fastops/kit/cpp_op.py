"""``kit.cpp_op``: a C++ function from its source, for tensors on the CPU."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from . import compiler
from .content import content_hash
from .diagnostics import with_name_hint
from .errors import CompileError
from .signature import Packing, Signature, check_text, plain_name

_ENTRY = "fastops_kit_entry"


class CppOp:
    """What ``cpp_op`` makes; see there."""

    def __init__(self, source: str, name: str, signature: str, options: Sequence[str] = (), contiguous: bool = True):
        check_text(name, source)
        self.function = name
        self.name = plain_name(name)
        self.source = source
        self.options = tuple(options)
        self.signature = Signature(signature, self.name)
        self.contiguous = contiguous
        self._described = (source, name, signature, self.options, contiguous)
        self._ready: dict[tuple[torch.dtype, ...], tuple[Any, Packing]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Checks the arguments and calls the function on this thread, without Python's lock.

        Raises:
            KitError: an argument that the signature does not take. Nothing was called.
            CompileError: the source does not compile.
            NoCompiler: there is no C++ compiler.
        """
        dtypes, _ = self.signature.bind(arguments, "cpu", self.contiguous)
        entry, packing = self._ready.get(dtypes) or self._prepare(dtypes)
        entry(packing(arguments))

    def prepare(self, *dtypes: torch.dtype) -> None:
        """Compiles ahead of the first call, for one dtype a type variable."""
        if dtypes not in self._ready:
            self._prepare(dtypes)

    def explain(self, *arguments: Any) -> str:
        """Which code a call with these arguments runs; it is compiled, not called."""
        dtypes, _ = self.signature.bind(arguments, "cpu", self.contiguous)
        if dtypes not in self._ready:
            self._prepare(dtypes)
        return f"C++ compiled by {compiler.available()}"

    def __reduce__(self) -> Any:
        return type(self), self._described

    @functools.cached_property
    def content_hash(self) -> str:
        """Of all that decides what a call does."""
        return content_hash(*self._described)

    def _prepare(self, dtypes: tuple[torch.dtype, ...]) -> tuple[Any, Packing]:
        types = self.signature.types(dtypes)
        passed = ", ".join(f"arguments->{p.name}" for p in self.signature.parameters)
        entry = (
            f"struct fastops_kit_arguments {{ {self.signature.declarations()} }};\n"
            f'extern "C" void {_ENTRY}(const fastops_kit_arguments* arguments) {{ {self.function}({passed}); }}\n'
        )
        source = self.signature.prelude(types) + self.source + self.signature.checks(self.function) + entry
        try:
            function = compiler.shared_library(source, name=self.name, options=self.options)[_ENTRY]
        except CompileError as error:
            raise with_name_hint(error, self.name, self.function, self.source) from None
        function.argtypes, function.restype = [ctypes.c_char_p], None
        ready = self._ready[dtypes] = function, self.signature.packing(types)
        return ready


def cpp_op(source: str, name: str, signature: str, options: Sequence[str] = (), contiguous: bool = True) -> CppOp:
    """A C++ function from its source, compiled by the machine's compiler when it is first called, and cached on disk.

    The twin of ``cuda_kernel`` for the CPU: ``function(x, y, n)`` checks the arguments against the signature and calls
    it. Outputs are arguments; it returns nothing. It is what a ``cpu=`` of ``kit.op`` calls.

    Args:
        source: C++17; the standard library may be included.
        name: the function, as one would write it behind the source: ``shift``, or ``shift<T>`` for a template.
        signature: as ``cuda_kernel`` has it: ``"const T* x, T* y, int64 n"``.
        options: further options of the compiler, such as ``-ffast-math`` or ``-lm``.
        contiguous: whether every tensor must be contiguous. A function that is given strides says False.

    Raises:
        KitError: the signature cannot be understood.
    """
    return CppOp(source, name, signature, options, contiguous)
