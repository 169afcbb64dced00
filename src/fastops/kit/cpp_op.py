"""``kit.cpp_op``: a C++ function from its source, for tensors on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from . import compiler
from .from_source import FromSource
from .signature import Packing

_ENTRY = "fastops_kit_entry"

# An exception that left it would end the process.
_CATCHING = f"""\
#if __cpp_exceptions
#include <exception>
extern "C" const char* {_ENTRY}(const fastops_kit_arguments* arguments) {{
  static thread_local char text[512];
  const char* what = "not a std::exception";
  try {{
    fastops_kit_call(arguments);
    return nullptr;
  }} catch (const std::exception& thrown) {{
    what = thrown.what();
    for (unsigned k = 0; k < sizeof text - 1 && (text[k] = what[k]); ++k) continue;
    return text;
  }} catch (...) {{
    return what;
  }}
}}
#else
extern "C" const char* {_ENTRY}(const fastops_kit_arguments* arguments) {{
  fastops_kit_call(arguments);
  return nullptr;
}}
#endif
"""


class CppOp(FromSource):
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

    def __init__(self, source: str, name: str, signature: str, options: Sequence[str] = (), contiguous: bool = True):
        super().__init__(source, name, signature, options, contiguous)
        self._ready: dict[tuple[torch.dtype, ...], tuple[Any, Packing]] = {}

    def __call__(self, *arguments: Any) -> None:
        """Checks the arguments and calls the function on this thread, without Python's lock.

        Raises:
            KitError: an argument that the signature does not take. Nothing was called.
            RuntimeError: the function threw an exception, whose text it has.
            CompileError: the source does not compile.
            NoCompiler: there is no C++ compiler.
        """
        dtypes, _ = self.signature.bind(arguments, "cpu", self.contiguous)
        entry, packing = self._ready.get(dtypes) or self._prepare(dtypes)
        packed = packing(arguments)
        self.signature.mark_written(arguments)
        thrown = entry(packed)
        if thrown is not None:
            raise RuntimeError(f"[{self.name}] the function threw an exception: {thrown.decode(errors='replace')}")

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

    def _prepare(self, dtypes: tuple[torch.dtype, ...]) -> tuple[Any, Packing]:
        types = self.signature.types(dtypes)
        passed = self.signature.passed(self.function)
        entry = (
            f"struct fastops_kit_arguments {{ {self.signature.declarations()} }};\n"
            f"static void fastops_kit_call(const fastops_kit_arguments* arguments) {{ {self.function}({passed}); }}\n"
            f"{_CATCHING}"
        )
        source = self._text(types) + entry
        # Without errno GCC makes 1 / sqrt(x² + 1) of cos(atan(x)), and NaN is lost.
        options = ("-fmath-errno", *self.options) if "atan" in source else self.options
        with self._explained():
            function = compiler.shared_library(source, name=self.name, options=options)[_ENTRY]
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_char_p
        ready = self._ready[dtypes] = function, self.signature.packing(types)
        return ready


cpp_op = CppOp
