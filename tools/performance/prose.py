"""Paragraphs and points of lists in lines of one width, and words as a sentence lists them."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable

fill = functools.partial(textwrap.fill, width=128, break_long_words=False, break_on_hyphens=False)


def wrapped(page: str) -> str:
    """Its paragraphs, and each point of a list, in lines of one width, whatever was put into them."""
    return "\n\n".join(map(wrapped_block, page.strip().split("\n\n"))) + "\n"


def wrapped_block(block: str) -> str:
    if block[0] in "#|!<":  # a heading, a table, a picture, a comment
        return block
    if not block.startswith("- "):
        return fill(block)
    return "\n".join(fill(point, subsequent_indent="  ") for point in block.splitlines())


def listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
