"""A compiler's messages as an error that shows the user's own lines."""

from __future__ import annotations

import re

from . import cache
from .errors import CompileError

_LINE = re.compile(r'#line (\d+) "(.*)"')
# A place as GCC and Clang write it. GCC shows no lines of a text that is no file; Clang and NVRTC do.
_PLACE = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+):(?P<column>\d+): ")


def compile_error(name: str, what_for: str, log: str, source: str) -> CompileError:
    """``source`` is kept on disk, for the message to say where."""
    kept = cache.keep_source(source)
    where = f"\nThe full source is {kept}" if kept else ""
    return CompileError(f"[{name}] does not compile {what_for}:\n{_with_lines(log, source)}{where}")


# A function's head: its name, and the parameters before its body.
_DEFINED = re.compile(r"\b([A-Za-z_]\w*)\s*\([^(){};]*\)\s*(?:const\s*|noexcept\s*)*\{")
_STATEMENTS = {"if", "for", "while", "switch", "catch"}


def with_name_hint(error: CompileError, name: str, function: str, source: str) -> CompileError:
    """``error`` after a line that says why ``function`` is not found in ``source``, if that may be the reason.

    Macros may define what no text shows, so that only the compiler knows.
    """
    plain = function.partition("<")[0].rpartition("::")[2].strip()
    defined = [word for word in dict.fromkeys(_DEFINED.findall(source)) if word not in _STATEMENTS]
    if not re.search(rf"\b{re.escape(plain)}\b", source):
        hint = f"name={function!r} is nowhere in the source, which defines {', '.join(defined) or 'no function'}"
    elif "<" not in function and re.search(rf"\btemplate\s*<[^;{{}}]*>[^;{{}}()]*\b{re.escape(plain)}\s*\(", source):
        hint = f"{plain} is a template: expected name={plain + '<T>'!r}, got {function!r}"
    else:
        return error
    return CompileError(f"[{name}] {hint}\n{error}")


def _with_lines(log: str, source: str) -> str:
    lines, texts = log.splitlines(), _texts(source)
    shown = []
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        shown.append(line)
        place = _PLACE.match(line)
        text = texts.get((place["file"], int(place["line"]))) if place else None
        if place and text is not None and not after.startswith(" "):
            lead = re.sub(r"[^\t]", " ", text[: int(place["column"]) - 1])
            shown += ["  " + text, f"  {lead}^"]
    return "\n".join(shown)


def _texts(source: str) -> dict[tuple[str, int], str]:
    """Each line by the file and number that ``#line`` gives it."""
    texts: dict[tuple[str, int], str] = {}
    file, number = "<stdin>", 1
    for text in source.splitlines():
        if directive := _LINE.fullmatch(text):
            file, number = directive[2], int(directive[1])
            continue
        texts[file, number] = text
        number += 1
    return texts
