"""Where in a text an error lies."""

from __future__ import annotations


def at_place(op: str, message: str, text: str, offset: int) -> str:
    """``[op] message`` above the line of ``text`` that ``offset`` lies in, with a caret below the character."""
    start = text.rfind("\n", 0, offset) + 1
    line = text[start:].split("\n", 1)[0]
    visible = "".join(c if c.isprintable() else " " for c in line)
    return f"[{op}] {message}\n  {visible}\n  {' ' * (offset - start)}^"
