"""What was compiled, on disk: a file is named by the hash of all that its content depends on.

Nothing is locked. Who finds no entry makes it, writes a file of its own and renames it; two processes that make the
same one waste a compilation and no more. Each file ends in the hash of what is before it: one that was cut or damaged
is made again. Where nothing can be written, everything works without the cache. So it does where others may write:
what lies there is not read, as ``trusted`` says.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import _C
from . import trusted

_DIGEST = hashlib.sha256().digest_size
_ENTRY, _SOURCE = ".bin", ".txt"
_OURS = re.compile(r"[0-9a-f]{64}\.bin|[0-9a-f]{16}\.txt|[0-9a-f]{16,64}\..*\.tmp")


def directory() -> Path | None:
    """``FASTOPS_CACHE_DIR``, or ``fastops`` in the user's cache directory; None where there is no home directory."""
    try:
        if chosen := os.environ.get("FASTOPS_CACHE_DIR"):
            return Path(chosen).expanduser()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "fastops"
        named = Path(os.environ.get("XDG_CACHE_HOME", "")).expanduser()
        # The standard says that a relative one is to be ignored.
        return (named if named.is_absolute() else Path.home() / ".cache") / "fastops"
    except RuntimeError:
        return None


def lookup(parts: Sequence[str | bytes], make: Callable[[], bytes]) -> bytes:
    """The entry of ``parts``, which ``make`` makes where there is no whole one."""
    data = get(parts)
    if data is None:
        data = make()
        put(parts, data)
    return data


def get(parts: Sequence[str | bytes]) -> bytes | None:
    """The entry of ``parts``; None where there is no whole one that only this user can have written."""
    folder = directory()
    if folder is None:
        return None
    try:
        content = trusted.read(folder, key(parts) + _ENTRY)
    except OSError:
        return None
    data, digest = content[:-_DIGEST], content[-_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def put(parts: Sequence[str | bytes], data: bytes) -> None:
    """Keeps an entry, where that is possible."""
    if (folder := directory()) is not None:
        _write(folder, key(parts) + _ENTRY, data + hashlib.sha256(data).digest())


def key(parts: Sequence[str | bytes]) -> str:
    """The name of an entry; with the lengths, so that ("ab", "c") is not ("a", "bc")."""
    digest = hashlib.sha256()
    for part in (_C.build_info()["version"], *parts):
        data = part.encode(errors="surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def file_identity(path: str) -> str:
    """What tells a compiler from another in a key, without reading it, which takes longer than the cache does."""
    status = os.stat(path)
    return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"


def refused() -> str:
    """Why nothing that is compiled can be kept; empty where it can."""
    folder = directory()
    if folder is None:
        return "there is no home directory"
    try:
        with trusted.opened(folder, create=True):
            tempfile.TemporaryFile(dir=folder).close()
    except trusted.UntrustedError as error:
        return str(error)
    except OSError:
        return "it cannot be written"
    return ""


def keep_source(source: str) -> Path | None:
    """Writes a source that did not compile, for the message to name."""
    name, content = key([source])[:16] + _SOURCE, source.encode(errors="surrogatepass")
    folder = directory()
    if folder is not None and _write(folder, name, content):
        return folder / name
    try:
        with tempfile.NamedTemporaryFile(prefix="fastops-", suffix=_SOURCE, delete=False) as file:
            file.write(content)
            return Path(file.name)
    except OSError:
        return None


def entries() -> list[Path]:
    """The files of whole entries and of kept sources."""
    return [path for path in _files() if path.suffix != trusted.UNFINISHED]


def clear() -> int:
    """Removes every file of the cache and returns how many they were; processes at work make anew what they need."""
    return sum(map(_removed, _files()))


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _files() -> list[Path]:
    """Ours alone, by their names: the directory may be one that the user has other things in."""
    folder = directory()
    try:
        return sorted(path for path in folder.iterdir() if _OURS.fullmatch(path.name)) if folder else []
    except OSError:
        return []


def _write(folder: Path, name: str, content: bytes) -> bool:
    try:
        trusted.write(folder, name, content)
    except trusted.UntrustedError as error:
        with _saying:
            _say(f"[fastops] {error}. Until then nothing that the kit compiles is kept")
        return False
    except OSError:
        return False
    return True


_saying = threading.Lock()


@functools.cache
def _say(text: str) -> None:
    warnings.warn(text, stacklevel=2)
