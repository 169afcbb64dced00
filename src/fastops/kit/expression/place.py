"""Where in a text an error lies."""

from __future__ import annotations

_WIDTH = 100  # of what is shown of a line
_BEFORE = 60  # of it before the place


def at_place(op: str, message: str, text: str, offset: int) -> str:
    """``[op] message`` above the line of ``text`` that ``offset`` lies in, with a caret below the character.

    Of a long line the part around it.
    """
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:].split("\n", 1)[0]
    visible = "".join(c if c.isprintable() else " " for c in line)
    column = offset - start
    first = 0 if len(line) <= _WIDTH else max(0, min(column - _BEFORE, len(line) - _WIDTH))
    shown = visible[first : first + _WIDTH] if len(line) > _WIDTH else visible
    before, after = "… " * (first > 0), " …" * (first + len(shown) < len(line))
    return f"[{brief(op)}] {message}\n  {before}{shown}{after}\n  {' ' * (len(before) + column - first)}^"


def brief(word: str) -> str:
    """A word of the user's in a message, which it must not fill."""
    return word if len(word) <= _BEFORE else f"{word[:_BEFORE]}…"
