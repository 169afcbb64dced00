"""Signatures: ``swish(x, *, beta=1.0)``."""

from __future__ import annotations

import keyword
import math
import re
from dataclasses import dataclass, field
from typing import Any

from ..errors import ExpressionError
from .place import at_place, brief
from .prelude import RESERVED

_CPP_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class co_await
    co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
    namespace new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast
    requires return short signed sizeof static static_assert static_cast struct switch template this thread_local throw
    true try typedef typeid typename typeof union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_MACROS = "linux unix"  # of GNU's dialect
_KEYWORDS = frozenset([*keyword.kwlist, *_CPP_KEYWORDS.split(), *_MACROS.split()])


@dataclass(frozen=True)
class Signature:
    """The name, the tensors in order, and the keyword scalars with their defaults."""

    name: str
    tensors: tuple[str, ...]
    scalars: dict[str, float] = field(default_factory=dict)


def name_error(name: str) -> str | None:
    """Why ``name`` cannot be an argument's, in Python, C++ and CUDA C++ alike; None if it can."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name):
        return (
            f"expected a name of ASCII letters, digits and underscores that starts with a letter, got {brief(name)!r}"
        )
    if "__" in name or name.lower().startswith("kit_"):
        return f"{brief(name)!r} is a name for generated code (kit_…, …__…): choose another"
    if name in _KEYWORDS:
        return f"{brief(name)!r} is a keyword of Python or C++: choose another name"
    if name in RESERVED:
        return f"{brief(name)!r} is a function of the C library: choose another name"
    return None


def parse_signature(text: Any) -> Signature:
    """``"swish(x, *, beta=1.0)"``: tensors, then scalars with defaults, which a call gives by keyword.

    Raises:
        ExpressionError: with the place in ``text``.
    """
    if not isinstance(text, str):
        raise ExpressionError(
            f"[kit] a signature must be text such as 'swish(x, *, beta=1.0)', got {brief(repr(text))}"
        )
    whole = re.fullmatch(r"\s*(\w+)\s*\(([^()]*)\)\s*", text)
    if not whole:
        without = ", without types and results" if "->" in text or "::" in text else ""
        raise ExpressionError(
            at_place("kit", f"expected a signature such as 'swish(x, *, beta=1.0)'{without}, got", text, 0)
        )
    op = whole[1]

    def fail(message: str, offset: int) -> ExpressionError:
        return ExpressionError(at_place(op, message, text, offset))

    if not op.isascii() or not op.isidentifier() or keyword.iskeyword(op):
        raise fail(f"expected a name of ASCII letters, digits and underscores, got {brief(op)!r}", whole.start(1))
    tensors: list[str] = []
    scalars: dict[str, float] = {}
    starred = False
    offset = whole.start(2)
    parts = whole[2].split(",")
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()  # a comma at the end, as Python allows
    for part in parts:
        at = offset + len(part) - len(part.lstrip())
        offset += len(part) + 1
        name, equals, default = (piece.strip() for piece in part.partition("="))
        if part.strip() == "*" and not starred:
            starred = True
            continue
        error = name_error(name)
        if error and re.fullmatch(r"\w+[?*&]?\s+\w+|\w+\s*:.*", name):
            raise fail(
                f"expected a name without its type, tensors before '*' and scalars behind it, got {brief(name)!r}", at
            )
        if error:
            raise fail(error, at)
        if name in tensors or name in scalars:
            raise fail(f"two arguments are called {brief(name)!r}", at)
        if equals:
            scalars[name] = _default(default)
            if math.isnan(scalars[name]) and default != "nan":
                raise fail(f"the default of {brief(name)!r} must be a number, got {brief(default)!r}", at)
        elif starred or scalars:
            raise fail(
                f"{brief(name)!r} follows the tensors, so it is a scalar and needs a default: {brief(name)}=1.0", at
            )
        else:
            tensors.append(name)
    if not tensors:
        raise fail("expected at least one tensor among the arguments", whole.start(2))
    return Signature(op, tuple(tensors), scalars)


def _default(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
