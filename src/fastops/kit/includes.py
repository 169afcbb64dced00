"""What a source includes of the user's own files, by content: the part of a cache key that no option shows.

Read is the text alone, without a preprocessor, and so more than is compiled: each name that an include, a
``__has_include`` or a macro has in any branch, in each folder that an option or the environment names. A file that
comes to lie earlier in the search path is thus another key. Relative paths start from the current directory.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_SPACE = rb"(?:[ \t]|/\*.*?\*/)*"
_DIRECTIVE = rb"^" + _SPACE + rb"(?:#|%:)" + _SPACE + rb"(?:include(?:_next)?|import|embed)\b" + _SPACE
_QUESTION = rb"\b__has_(?:include(?:_next)?|embed)" + _SPACE + rb"\(" + _SPACE
_DEFINITION = rb"^" + _SPACE + rb"(?:#|%:)" + _SPACE + rb"define\b[^\n]*?(?=[\"<])"
_NAMED = re.compile(
    rb"(?ms)(?:" + _DIRECTIVE + rb"|" + _QUESTION + rb"|" + _DEFINITION + rb')(?:"([^"\n]+)"|<([^>\n]+)>|(?P<macro>\w))'
)
_PREFIX = re.compile(r"\A(?:-(?:iquote|isystem|idirafter|include|imacros|I|L|B)|@)")


class Included(NamedTuple):
    """Each file with the hash of its content; ``all``: no include is by a macro, whose value is not known here."""

    files: list[str]
    all: bool


def read(text: str, options: Sequence[str], folders: Iterable[str] = ()) -> Included:
    """The files that a compilation may read.

    Args:
        text: the source.
        options: the compiler's. What they name may be a folder to search, a file to include, a library.
        folders: others that are searched.
    """
    try:
        here = os.getcwd()
    except OSError:  # it was removed
        here = os.sep
    named = list(_named(options))
    searched = list(dict.fromkeys([*folders, *filter(os.path.isdir, named)]))
    found: dict[str, str] = {}
    every = True
    texts = [(text.encode(errors="surrogatepass"), here)]

    def take(name: str, around: str) -> None:
        for path in (os.path.join(here, folder, name) for folder in (around, *searched)):
            if not os.path.isfile(path):
                continue
            # Headers that include each other by ../ would have ever longer paths.
            place = os.path.realpath(os.path.dirname(path))
            path = os.path.join(place, os.path.basename(path))
            if path not in found and (content := _content(path)) is not None:
                found[path] = _hash(content)
                texts.append((content, place))

    for name in named:
        take(name, here)
    for name in (option[2:] for option in options if option.startswith("-l")):
        take(f"lib{name}.a", here)
    while texts:
        content, around = texts.pop()
        for match in _NAMED.finditer(content.replace(b"\\\r\n", b"").replace(b"\\\n", b"")):
            if match["macro"]:
                every = False
            else:
                take(os.fsdecode(match[1] or match[2]), around)
    return Included([f"{path} {digest}" for path, digest in sorted(found.items())], every)


def digest(path: str) -> str:
    """Of a file's content; empty where there is none."""
    content = _content(path)
    return "" if content is None else _hash(content)


def _named(options: Sequence[str]) -> Iterator[str]:
    """Whatever in the options may be a path or the name of a header."""
    for option in options:
        for part in option.split(","):
            yield part
            values = part.partition("=")[2].strip('"<>'), _PREFIX.sub("", part, count=1).removeprefix("=")
            yield from filter(None, values)
            if part.startswith("@") and (content := _content(part[1:])) is not None:
                yield from _named(shlex.split(os.fsdecode(content)))


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    except (OSError, ValueError):  # a folder, or a null character in a name
        return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
