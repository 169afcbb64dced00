"""C++ to a library in this process, by the machine's own compiler: without torch's headers, 0.1 to 0.2 seconds.

A library is taken from the cache if all is as it was: source, options, compiler, processor, and the content of each
file that was included. Which those were the compiler says itself, and ``includes`` which others they might have been.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import cache, includes, trusted
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
_SEARCHED = ("CPATH", "CPLUS_INCLUDE_PATH")  # folders of headers
_ENVIRONMENT = (*_SEARCHED, "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "SDKROOT", "MACOSX_DEPLOYMENT_TARGET")


def available() -> str | None:
    """The C++ compiler as one would type it: ``CXX``, or the first of c++, g++ and clang++; None where there is none.

    ``CXX`` is a path, or a command with words before or behind, ``ccache g++ -m64``, which is split as a shell does.
    """
    for command in _candidates():
        if path := shutil.which(command[0]):
            return shlex.join([path, *command[1:]])
    return None


def _candidates() -> list[list[str]]:
    chosen = os.environ.get("CXX", "").strip()
    if not chosen:
        return [["c++"], ["g++"], ["clang++"]]
    if shutil.which(chosen):  # a path with spaces in it
        return [[chosen]]
    try:
        return [shlex.split(chosen)]
    except ValueError:  # a quotation mark without its twin
        return [[chosen]]


class _Library(NamedTuple):
    """What was opened, and of each file that the compiler read the content's hash."""

    files: dict[str, str]
    opened: ctypes.CDLL


_opened: dict[str, _Library] = {}  # by the key of the cache


def shared_library(source: str, *, name: str, options: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles ``source``, or takes it from the cache, and opens it; what is the same is opened once in a process.

    Args:
        name: of the op, for messages.
        options: further ones of the compiler; they come behind the source, as libraries must. Relative paths in them
            and in the source start from the current directory.

    Raises:
        CompileError: with the compiler's messages, in which ``#line`` keeps the numbers of the user's own lines.
        NoCompiler: there is no C++ compiler.
    """
    compiler = available()
    if compiler is None:
        looked_for = ", ".join(map(shlex.join, _candidates()))
        raise NoCompiler(
            f"[{name}] there is no C++ compiler here (looked for {looked_for}): install g++ "
            "(Debian, Ubuntu: apt install g++; conda: conda install cxx-compiler), or set CXX"
        )
    command = shlex.split(compiler)
    given = (*command, *_OPTIONS, _native())
    before = included(source, (*command[1:], *options))
    parts = ["c++", *_tools(command), _cpu(), source, *given, "options", *options, "files", *before]
    parts += [f"{variable}={os.environ.get(variable, '')}" for variable in _ENVIRONMENT]
    key = cache.key(parts)
    if (known := _opened.get(key)) and _current(known.files):
        return known.opened
    library = _kept(parts, name)
    if library is None:
        entry = _compile(given, source, name, options)
        library = _library(entry, name)
        if included(source, (*command[1:], *options)) == before:  # nothing was edited meanwhile
            cache.put(parts, entry)
    _opened[key] = library
    return library.opened


def included(source: str, options: Sequence[str]) -> list[str]:
    """The files that a compilation may read, but for the compiler's own, with their contents' hashes."""
    folders = (folder for variable in _SEARCHED for folder in os.environ.get(variable, "").split(os.pathsep))
    return includes.read(source, options, folders).files


def _tools(command: Sequence[str]) -> list[str]:
    """The identities of the programs in it, a launcher's too."""
    return [cache.file_identity(path) for path in map(shutil.which, command) if path]


def _kept(parts: Sequence[str], name: str) -> _Library | None:
    """From the cache, if it is whole, of today's files, and opens."""
    entry = cache.get(parts)
    if entry is None:
        return None
    try:
        return _library(entry, name) if _current(json.loads(entry.partition(b"\n")[0])) else None
    except (AttributeError, KitError, ValueError):  # another text in place of the line, or no library
        return None


def _library(entry: bytes, name: str) -> _Library:
    files, _, content = entry.partition(b"\n")
    return _Library(json.loads(files), _open(content, name))


def _current(files: dict[str, str]) -> bool:
    return all(includes.digest(path) == found for path, found in files.items())


def _compile(given: Sequence[str], source: str, name: str, options: Sequence[str]) -> bytes:
    """An entry: the files that were read, a line of JSON, and the library."""
    with _folder(name) as folder:
        output, read = Path(folder, "op.so"), Path(folder, "op.d")
        listed = ("-MD", "-MF", str(read), "-MT", "op")
        command = [*given, *listed, "-x", "c++", "-", "-x", "none", "-o", str(output), *options]
        status, said = _run(command, source.encode(errors="surrogatepass"))
        if status or not output.is_file():
            raise compile_error(name, f"with {shlex.join(given[:1])}", said or f"exit status {status}", source)
        files = _listed(read.read_bytes()) if read.is_file() else []
        return json.dumps({path: includes.digest(path) for path in files}).encode() + b"\n" + output.read_bytes()


def _run(command: Sequence[str], source: bytes) -> tuple[int, str]:
    """In a session of its own: Ctrl-C is Python's to take, who ends the compiler and what that started."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(source)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)  # on which it removes its files
                process.wait(2)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, said.decode(errors="replace").strip()


def _listed(rule: bytes) -> list[str]:
    """The files of a rule as Make has it: names with backslashes before spaces, lines that go on."""
    words = re.findall(rb"(?:\\[ #]|\$\$|[^\s\\]|\\(?=[^\s#]))+", rule.partition(b":")[2].replace(b"\\\n", b" "))
    paths = (os.fsdecode(re.sub(rb"\\([ #])", rb"\1", word).replace(b"$$", b"$")) for word in words)
    return [os.path.abspath(path) for path in paths if path != "/dev/stdin"]


def _open(library: bytes, name: str) -> ctypes.CDLL:
    """By way of a file of its own that is gone at once: what was checked is what runs, wherever the cache lies."""
    refused: OSError | None = None
    for folder in _places():  # one of them may be mounted noexec
        try:
            with tempfile.NamedTemporaryFile(prefix="fastops-", suffix=".so", dir=folder) as file:
                file.write(library)
                file.flush()
                return ctypes.CDLL(file.name)
        except OSError as error:
            refused = refused or error
    raise KitError(f"[{name}] the compiled library does not open: {refused}")


@contextlib.contextmanager
def _folder(name: str) -> Iterator[str]:
    refused: OSError | None = None
    for place in _places():
        try:
            folder = tempfile.TemporaryDirectory(prefix="fastops-", dir=place, ignore_cleanup_errors=True)
        except OSError as error:
            refused = refused or error
            continue
        with folder as path:
            yield path
        return
    raise KitError(f"[{name}] there is no folder to compile in: {refused}")


def _places() -> list[str]:
    """For files of a moment. First those where no one can exchange them."""
    places = [tempfile.gettempdir()]
    if (kept := cache.directory()) is not None:
        with contextlib.suppress(OSError), trusted.opened(kept, create=True):
            places.append(str(kept))
    return sorted(places, key=trusted.exchangeable)


def _native() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


@functools.cache
def _cpu() -> str:
    """What ``native`` means: a cache may be shared by machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor()
    lines = re.findall(r"(?m)^(?:model name|flags|Features|CPU part)\s*:.*$", text)
    return hashlib.sha256("\n".join(sorted(set(lines))).encode()).hexdigest()
