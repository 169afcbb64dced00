"""What was compiled, on disk: a file is named by the hash of all that its content depends on.

Nothing is locked. Who finds no entry makes it, writes a file of its own and renames it; two processes that make the
same one waste a compilation and no more. Each file ends in the hash of what is before it: one that was cut or damaged
is made again. Where nothing can be written, everything works without the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import _C

_DIGEST = hashlib.sha256().digest_size
_ENTRY, _SOURCE, _UNFINISHED = ".bin", ".txt", ".tmp"
_OURS = re.compile(r"[0-9a-f]{64}\.bin|[0-9a-f]{16}\.txt|[0-9a-f]{16,64}\..*\.tmp")


def directory() -> Path | None:
    """``FASTOPS_CACHE_DIR``, or ``fastops`` in the user's cache directory; None where there is no home directory."""
    if chosen := os.environ.get("FASTOPS_CACHE_DIR"):
        return Path(chosen)
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "fastops"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastops"
    except RuntimeError:
        return None


def lookup(parts: Sequence[str | bytes], make: Callable[[], bytes]) -> bytes:
    """The entry of ``parts``, which ``make`` makes where there is no whole one."""
    folder = directory()
    if folder is None:
        return make()
    path = folder / (key(parts) + _ENTRY)
    data = _read(path)
    if data is None:
        data = make()
        _write(path, data + hashlib.sha256(data).digest())
    return data


def key(parts: Sequence[str | bytes]) -> str:
    """The name of an entry; with the lengths, so that ("ab", "c") is not ("a", "bc")."""
    digest = hashlib.sha256()
    for part in (_C.build_info()["version"], *parts):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def file_identity(path: str) -> str:
    """What tells a compiler from another in a key, without reading it, which takes longer than the cache does."""
    status = os.stat(path)
    return f"{os.path.realpath(path)} {status.st_size} {status.st_mtime_ns}"


def writable() -> bool:
    """Whether what is compiled can be kept."""
    folder = directory()
    if folder is None:
        return False
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def keep_source(source: str) -> Path | None:
    """Writes a source that did not compile, for the message to name."""
    name = key([source])[:16] + _SOURCE
    for folder in (directory(), Path(tempfile.gettempdir())):
        if folder is not None and _write(folder / name, source.encode()):
            return folder / name
    return None


def entries() -> list[Path]:
    """The files of whole entries and of kept sources."""
    return [path for path in _files() if path.suffix != _UNFINISHED]


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


def _read(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data, digest = content[:-_DIGEST], content[-_DIGEST:]
    return data if hashlib.sha256(data).digest() == digest else None


def _write(path: Path, content: bytes) -> bool:
    unfinished = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, unfinished = tempfile.mkstemp(_UNFINISHED, path.stem + ".", path.parent)
        with open(number, "wb") as file:
            file.write(content)
        os.replace(unfinished, path)
    except OSError:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
        return False
    return True
