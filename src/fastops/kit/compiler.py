"""C++ to a library in this process, by the machine's own compiler: without torch's headers, 0.1 to 0.2 seconds."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from . import cache
from .diagnostics import compile_error
from .errors import KitError, NoCompiler

# Without the two -fno- GCC does not vectorise calls of math functions. The one value that they change is that of sin
# and cos of atan at NaN and infinity: CPP_OPTIONS and cpp_op prevent it.
_OPTIONS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fdiagnostics-color=never",
)


def available() -> str | None:
    """The path of the C++ compiler: ``CXX``, or the first of c++, g++ and clang++; None where there is none."""
    return next(filter(None, map(shutil.which, _candidates())), None)


def _candidates() -> list[str]:
    chosen = os.environ.get("CXX")
    return [chosen] if chosen else ["c++", "g++", "clang++"]


def shared_library(source: str, *, name: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles ``source``, or takes it from the cache, and opens it; the same source is opened once in a process.

    Args:
        name: of the op, for messages.
        options: further ones of the compiler; they come behind the source, as libraries must.

    Raises:
        CompileError: with the compiler's messages, in which ``#line`` keeps the numbers of the user's own lines.
        NoCompiler: there is no C++ compiler.
    """
    compiler = available()
    if compiler is None:
        raise NoCompiler(
            f"[{name}] there is no C++ compiler here (looked for {', '.join(_candidates())}): install g++ "
            "(Debian, Ubuntu: apt install g++; conda: conda install cxx-compiler), or set CXX"
        )
    return _opened(compiler, source, name, tuple(options))


@functools.cache
def _opened(compiler: str, source: str, name: str, options: tuple[str, ...]) -> ctypes.CDLL:
    given = (*_OPTIONS, _native())
    parts = ["c++", cache.file_identity(compiler), _cpu(), source, *given, "options", *options]
    return _open(cache.lookup(parts, lambda: _compile(compiler, source, name, given, options)), name)


def _compile(compiler: str, source: str, name: str, given: Sequence[str], options: Sequence[str]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="fastops-") as folder:
        output = Path(folder, "op.so")
        command = [compiler, *given, "-x", "c++", "-", "-x", "none", "-o", str(output), *options]
        done = subprocess.run(command, input=source, capture_output=True, text=True, errors="replace", cwd=folder)
        if done.returncode or not output.is_file():
            raise compile_error(
                name, f"with {compiler}", done.stderr.strip() or f"exit status {done.returncode}", source
            )
        return output.read_bytes()


def _open(library: bytes, name: str) -> ctypes.CDLL:
    """By way of a file of its own that is gone at once: what was checked is what runs, wherever the cache lies."""
    refused: OSError | None = None
    for folder in (tempfile.gettempdir(), cache.directory()):  # one of them may be mounted noexec
        try:
            with tempfile.NamedTemporaryFile(prefix="fastops-", suffix=".so", dir=folder) as file:
                file.write(library)
                file.flush()
                return ctypes.CDLL(file.name)
        except OSError as error:
            refused = refused or error
    raise KitError(f"[{name}] the compiled library does not open: {refused}")


def _native() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


@functools.cache
def _cpu() -> str:
    """What ``native`` means: a cache may be shared by machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    lines = re.findall(r"(?m)^(?:model name|flags|Features|CPU part)\s*:.*$", text)
    return hashlib.sha256("\n".join(sorted(set(lines))).encode()).hexdigest()
