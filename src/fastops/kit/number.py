"""Numbers of a caller's: Python's, NumPy's, and what else has ``__float__`` or ``__index__``; no tensors, no text."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._arguments import real_if_complex

_PLAIN = (bool, int, float)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)  # as torch.compile has them
_UNREADABLE = (Tensor, str, bytes, bytearray, type(None))


def real(value: Any) -> Any:
    """``value`` as a float or an integer.

    Raises:
        TypeError: it is no real number. A tensor is none: its gradient would be lost.
    """
    if type(value) in _PLAIN or isinstance(value, _SYMBOLIC):
        return value
    if isinstance(value, _UNREADABLE) or _kind(value) not in "biuf":
        raise _error("a number", value)
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        raise _error("a number", value)
    try:
        return float(value) if hasattr(value, "__float__") and _kind(value) not in ("i", "u") else operator.index(value)
    except (TypeError, ValueError):
        raise _error("a number", value) from None


def integer(value: Any) -> Any:
    """``value`` as an integer, which truth is as well.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, (bool, int, torch.SymInt)):
        return value if type(value) in _PLAIN or isinstance(value, torch.SymInt) else int(value)
    if isinstance(value, _UNREADABLE) or _kind(value) not in "biu":
        raise _error("an integer", value)
    try:
        return bool(value) if _kind(value) == "b" else operator.index(value)
    except TypeError:
        raise _error("an integer", value) from None


def truth(value: Any) -> Any:
    """``value`` as a bool.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, (bool, torch.SymBool)):
        return value
    if isinstance(value, _UNREADABLE) or _kind(value) != "b":
        raise _error("a bool", value)
    return bool(value)


def _kind(value: Any) -> str:
    """NumPy's letter for a scalar, or an array without dimensions; "" of what is not NumPy's, "?" of other arrays."""
    return "?" if getattr(value, "shape", ()) != () else getattr(getattr(value, "dtype", None), "kind", "")


def _error(expected: str, value: Any) -> TypeError:
    return TypeError(f"must be {real_if_complex(expected, value)}, got {type(value).__name__}")


def named(op: str, name: str, convert: Callable[[Any], Any], value: Any, error: type[Exception] = TypeError) -> Any:
    """``convert(value)``, whose error names the op and the argument."""
    try:
        return convert(value)
    except TypeError as refused:
        raise error(f"[{op}] {name} {refused}") from None
