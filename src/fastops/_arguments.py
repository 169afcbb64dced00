"""What is wrong with the arguments of a call that failed: the types that torch's dispatcher names without our op."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Complex, Real
from typing import Any

import torch
from torch import Tensor

_compiling = torch.compiler.is_dynamo_compiling
_NUMBERS = (Real, torch.SymInt, torch.SymFloat, torch.SymBool)

# By a schema's type: what it takes, in words and as Python types.
_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "Tensor": ("a Tensor", (Tensor,)),
    "Optional[Tensor]": ("a Tensor or None", (Tensor, type(None))),
    "float": ("a number", _NUMBERS),
    "Optional[float]": ("a number or None", (*_NUMBERS, type(None))),
    "int": ("an integer", (int, torch.SymInt)),
    "bool": ("a bool", (bool, torch.SymBool)),
    "str": ("a str", (str,)),
    "Optional[ScalarType]": ("a torch.dtype or None", (torch.dtype, type(None))),
}


def check_types(op: str, schema: Any, inputs: Sequence[Any]) -> None:
    """TypeError for the first of ``inputs``, in the order of ``schema``'s arguments, that is of another type."""
    for argument, value in zip(schema.arguments, inputs, strict=False):
        expected, types = _KINDS.get(str(argument.real_type).replace("SymInt", "int"), ("", (object,)))
        if not isinstance(value, types):
            raise type_error(op, argument.name, expected, value)


def check_tensors(op: str, **tensors: Any) -> None:
    """TypeError for the first that is no Tensor."""
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise type_error(op, name, "a Tensor", value)


def check_numbers(op: str, complex_too: bool = False, /, **numbers: Any) -> None:
    """Raise TypeError for the first value that is no real number, or no complex one if ``complex_too``.

    torch's dispatcher would take a tensor, and the tensor's gradient would be lost.
    """
    for name, value in numbers.items():
        if complex_too and is_complex(value):
            continue
        # torch.compile traces the first question alone.
        if isinstance(value, (Tensor, complex)) or not (_compiling() or isinstance(value, (*_NUMBERS, type(None)))):
            raise type_error(op, name, "a number", value)


def is_complex(value: Any) -> bool:
    """Return whether a value is a number that is not real: Python's or, outside of ``torch.compile``, NumPy's."""
    if isinstance(value, complex):
        return True
    return not _compiling() and isinstance(value, Complex) and not isinstance(value, Real)


def type_error(op: str, name: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"[{op}] {name} must be {real_if_complex(expected, value)}, got {type(value).__name__}")


def real_if_complex(expected: str, value: Any) -> str:
    """Return ``expected`` with "a real number" for "a number" if the value is a complex number."""
    return expected.replace("a number", "a real number") if is_complex(value) else expected
