"""What an op's schema says, in the form that calls need."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .errors import KitError
from .number import integer, named, real, truth

# How a schema writes torch's types, by their kind.
_WRITTEN = {
    "TensorType": "Tensor",
    "IntType": "int",
    "SymIntType": "SymInt",
    "FloatType": "float",
    "BoolType": "bool",
    "ComplexType": "complex",
    "NumberType": "Scalar",
    "StringType": "str",
    "DeviceObjType": "Device",
    "ScalarTypeType": "ScalarType",
    "LayoutType": "Layout",
    "MemoryFormatType": "MemoryFormat",
    "GeneratorType": "Generator",
}
# Where torch parses a name to a number, of which kind the name is.
_NAMED = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}

_ONE = {"int": integer, "float": real, "bool": truth}


def _several(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: [convert(x) for x in values] if isinstance(values, (tuple, list)) else values


def _unless_none(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


# How an argument of a type is made a number of Python's, or a list of such.
_NUMBERS = _ONE | {f"List[{kind}]": _several(convert) for kind, convert in _ONE.items()}
_NUMBERS |= {f"Optional[{kind}]": _unless_none(convert) for kind, convert in _NUMBERS.items()}

_MOST_ARGUMENTS = 64  # of torch's dispatcher
_TENSORS = ("Tensor", "Optional[Tensor]")


class Schema:
    """A schema as torch reads it: names of arguments, their types, defaults, which are tensors; names of outputs.

    ``my::scale(Tensor x, *, float a=2.0) -> Tensor`` has arguments ``x`` and ``a`` and the output ``out``.
    """

    def __init__(self, text: str) -> None:
        example = "'my::scale(Tensor x) -> Tensor'"
        if not isinstance(text, str):
            raise KitError(f"[kit.op] expected a schema, text such as {example}, got {type(text).__name__}")
        self.text = text
        try:
            parsed: Any = torch._C.parse_schema(text)
        except (RuntimeError, IndexError, ValueError) as error:  # of a number beyond float64 it is not the first
            raise KitError(f"[kit.op] expected a schema such as {example}, got {text!r}: {error}") from None
        self.namespace, _, self.name = parsed.name.rpartition("::")
        if not self.namespace or parsed.overload_name:
            raise KitError(f"[{self.name}] expected a name such as my::{self.name}, got {text.partition('(')[0]!r}")
        types = [str(a.type) for a in parsed.arguments]
        if not types or types[0] != "Tensor":
            raise KitError(f"[{self.name}] the first argument must be a Tensor, got {types[0] if types else 'none'}")
        if lists := [
            a.name for a, t in zip(parsed.arguments, types, strict=True) if "Tensor" in t and t not in _TENSORS
        ]:
            raise KitError(f"[{self.name}] a tensor argument must be Tensor or Tensor?, got a list in {lists[0]}")
        if any(a.alias_info is not None for a in (*parsed.arguments, *parsed.returns)):
            raise KitError(f"[{self.name}] an op must return new tensors and overwrite none, got {text!r}")
        if not parsed.returns or any(str(r.type) != "Tensor" for r in parsed.returns):
            raise KitError(f"[{self.name}] the outputs must be Tensors, got {text.rpartition('->')[2].strip()!r}")
        self.arguments = tuple(a.name for a in parsed.arguments)
        if twice := [a for a in self.arguments if self.arguments.count(a) > 1]:
            raise KitError(f"[{self.name}] expected arguments with names of their own, got {twice[0]} twice")
        if len(self.arguments) > _MOST_ARGUMENTS:
            got = len(self.arguments)
            raise KitError(f"[{self.name}] an op of torch's has at most {_MOST_ARGUMENTS} arguments, got {got}")
        self.types = dict(zip(self.arguments, types, strict=True))
        # Lists of a length, for which torch takes one number too.
        self.lengths = {k: a.N for k, a in enumerate(parsed.arguments) if a.N}
        self.defaults = {a.name: _default(a) for a in parsed.arguments if a.has_default_value()}
        # The types by which torch parses numbers: a dtype is an integer to it too.
        real = [str(a.real_type).replace("SymInt", "int") for a in parsed.arguments]
        named = zip(self.arguments, real, strict=True)
        self.numbers = tuple((k, a, _NUMBERS[t]) for k, (a, t) in enumerate(named) if t in _NUMBERS)
        self.tensors = tuple(k for k, t in enumerate(types) if t in _TENSORS)
        several = len(parsed.returns) > 1
        self.outputs = tuple(r.name or (f"out{k}" if several else "out") for k, r in enumerate(parsed.returns))
        arguments = [f"{self._written(a.real_type, a.N)} {a.name}" for a in parsed.arguments]
        returns = ", ".join(["Tensor"] * len(parsed.returns))
        self._without_defaults = f"({', '.join(arguments)}) -> ({returns})"

    def named(self, name: str) -> str:
        """The schema of an op ``name`` that takes every argument, and by position.

        autograd.Function knows no other, and torch leaves out what equals its default when it calls Python.
        """
        return f"{name}{self._without_defaults}"

    def _written(self, kind: Any, size: int | None) -> str:
        if kind.kind() == "OptionalType":
            return f"{self._written(kind.getElementType(), size)}?"
        if kind.kind() == "ListType":
            return f"{self._written(kind.getElementType(), None)}[{size or ''}]"
        if kind.kind() not in _WRITTEN:
            raise KitError(f"[{self.name}] an argument must be of a type {', '.join(_WRITTEN.values())}, got {kind}")
        return _WRITTEN[kind.kind()]

    def with_lists(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """With a list for each number that stands for one: what the dispatcher would make of it, and no one else."""
        return tuple(
            [x] * self.lengths[k] if k in self.lengths and not isinstance(x, (list, tuple, type(None))) else x
            for k, x in enumerate(args)
        )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position."""
        if len(args) > len(self.arguments):
            raise TypeError(f"[{self.name}] expected at most {len(self.arguments)} arguments, got {len(args)}")
        rest = self.arguments[len(args) :]
        if unknown := [name for name in kwargs if name not in rest]:
            raise TypeError(f"[{self.name}] expected arguments {', '.join(self.arguments)}, got {unknown[0]} besides")
        if missing := [name for name in rest if name not in kwargs and name not in self.defaults]:
            raise TypeError(f"[{self.name}] expected an argument {missing[0]}, got none")
        return *args, *(kwargs[name] if name in kwargs else self.defaults[name] for name in rest)

    def plain(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """With Python's numbers for NumPy's and others."""
        result = list(args)
        for k, name, convert in self.numbers:
            if type(args[k]) not in (int, float, bool):
                result[k] = named(self.name, name, convert, args[k])
        return tuple(result)


def _default(argument: Any) -> Any:
    """As a call gives it: of a dtype, layout or memory format torch has parsed the number alone."""
    value, kind = argument.default_value, str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    return _named(kind, value) if kind in _NAMED and isinstance(value, int) else value


@functools.lru_cache
def _named(kind: str, value: int) -> Any:
    for name, found in vars(torch).items():
        if isinstance(found, _NAMED[kind]):
            try:
                parsed = torch._C.parse_schema(f"named({kind} x={name}) -> ()")
            except RuntimeError:  # the parser does not have all of them
                continue
            if parsed.arguments[0].default_value == value:
                return found
    return value
