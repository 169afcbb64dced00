"""Folders and files that no one else may write to: who can, decides which code runs.

Taken is what belongs to this user or to root, who may replace this program too, and what neither its group nor others
may write to. A folder is opened first, then checked, and what lies in it is opened through it, so that nothing changes
if a path is exchanged. A link in the place of the folder or of a file is not followed; links above the folder are.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

UNFINISHED = ".tmp"


class UntrustedError(OSError):
    """Others may have written it."""


@contextlib.contextmanager
def opened(folder: Path, *, create: bool = False) -> Iterator[int]:
    """The folder's descriptor; ``create``: it and those above it that are missing are made, for this user alone.

    Raises:
        UntrustedError: others may write there, or it is a link.
        OSError: it is not there, or is no folder.
    """
    if create:
        _make(folder)
    if folder.is_symlink():
        raise UntrustedError(f"{folder} is a link: name the folder that it leads to")
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), folder)
        yield descriptor
    finally:
        os.close(descriptor)


def read(folder: Path, name: str) -> bytes:
    """A file of the folder.

    Raises:
        OSError: there is none that can be trusted.
    """
    with opened(folder) as place:
        # A FIFO would block without O_NONBLOCK.
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place)
        try:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode):
                raise UntrustedError(f"{folder / name} is no file")
            _check(status, folder / name)
            with open(number, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(number)


def write(folder: Path, name: str, content: bytes) -> None:
    """A file of the folder, whole or not at all.

    Raises:
        OSError: it cannot be written, or others may write to the folder.
    """
    unfinished = f"{Path(name).stem}.{secrets.token_hex(8)}{UNFINISHED}"
    with opened(folder, create=True) as place:
        number = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=place
        )
        try:
            with open(number, "wb") as file:
                os.fchmod(number, 0o600)  # whatever the umask
                file.write(content)
            os.replace(unfinished, name, src_dir_fd=place, dst_dir_fd=place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished, dir_fd=place)
            raise


def exchangeable(folder: str) -> bool:
    """Whether others may put a file of their own in the place of one that is made here, as nowhere under /tmp."""
    path = Path(os.path.realpath(folder))
    try:
        modes = [os.stat(p).st_mode for p in (path, *path.parents)]
    except OSError:  # it is gone, or cannot be looked at
        return True
    return any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in modes)


def _make(folder: Path) -> None:
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was first
            os.mkdir(path, 0o700)
            if stat.S_IMODE(os.lstat(path).st_mode) & 0o700 != 0o700:  # a umask that takes the owner's own rights
                os.chmod(path, 0o700)


def _check(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{path} belongs to another user")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        raise UntrustedError(f"others may write to {path} (mode {mode:04o}): chmod go-w makes it yours alone")
