"""A function for Numba with what it reads outside as it is now.

Numba takes that for constants when it compiles, which the kit lets it do at the first call for each dtype: kernels of
one op would differ if something changed in between.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any

from .content import content_hash
from .errors import KitError
from .outside import CONSTANTS, Unbound, installed, read

_count = itertools.count()


class Frozen:
    """A function, its copy whose globals and closure are copies too, and their content's hash.

    So are the functions that it calls, where Numba compiles them, arrays, and the program's own modules; of what cannot
    be copied the content must stay. Copies of this are the same; what is unpickled is of what is found then.
    """

    def __init__(self, given: Callable[..., Any]) -> None:
        self._given = given
        self._copies: dict[int, tuple[Any, Any]] = {}  # by id, beside what has that id
        self._constants: list[tuple[str, Any]] = []
        self._uncopied: list[tuple[str, Any, str]] = []
        plain = getattr(given, "py_func", given)
        if not isinstance(plain, types.FunctionType):
            raise KitError(f"[{given.__name__}] expected a function that is written in Python, got {plain!r}")
        self._copy = self._without_values(plain)
        self._fill(plain)
        self.content_hash = content_hash(plain, self._constants)

    @property
    def function(self) -> types.FunctionType:
        """The copy.

        Raises:
            KitError: its content has changed since.
        """
        self.check()
        return self._copy

    def check(self) -> None:
        """Raise a KitError if the content of what could not be copied has changed since the definition."""
        for name, value, content in self._uncopied:
            if content_hash(value) != content:
                raise KitError(
                    f"[{self._copy.__name__}] expected {name} as it was at the definition, got another content"
                )

    def __reduce__(self) -> Any:
        return Frozen, (self._given,)

    def __copy__(self) -> Frozen:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self

    def _without_values(self, given: types.FunctionType) -> types.FunctionType:
        """The copy as long as nothing is known of what it reads, which may be itself."""
        scope = {"__builtins__": builtins, "__name__": given.__module__}
        cells = tuple(types.CellType() for _ in given.__code__.co_freevars)
        copy = types.FunctionType(given.__code__, scope, given.__name__, given.__defaults__, cells)
        copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = given.__kwdefaults__, given.__qualname__, given.__doc__
        self._copies[id(given)] = given, copy
        return copy

    def _fill(self, given: types.FunctionType) -> None:
        copy: types.FunctionType = self._copies[id(given)][1]
        scope = copy.__globals__
        cells = dict(zip(copy.__code__.co_freevars, copy.__closure__ or (), strict=True))
        for name, value in read(given):
            if isinstance(value, Unbound):
                raise KitError(
                    f"[{given.__name__}] expected a value of {name} at the definition, got none yet: define it before"
                )
            first, *attributes = name.split(".")
            if attributes:
                _set(cells[first].cell_contents if first in cells else scope[first], attributes, self._of(name, value))
            elif first in cells:
                cells[first].cell_contents = self._of(name, value)
            else:
                scope[first] = self._of(name, value)

    def _of(self, name: str, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        copy = value
        function = _compiled_by_numba(value)
        if function is not None:
            new = id(function) not in self._copies
            plain = self._without_values(function) if new else self._copies[id(function)][1]
            copy = _compiled_again(value, plain)
            self._copies[id(value)] = value, copy
            if new:
                self._fill(function)
        elif isinstance(value, types.ModuleType):
            copy = value if installed(value.__name__) else _Module(value)
        elif isinstance(value, tuple):
            parts = [self._of(name, x) for x in value]
            copy = type(value)._make(parts) if hasattr(value, "_make") else tuple(parts)
        elif type(value).__module__ == "numpy" and hasattr(value, "strides"):
            self._constants.append((name, value))
            copy = value.copy(order="K")
        else:
            self._constants.append((name, value))
            if not (value is None or isinstance(value, CONSTANTS) or hasattr(value, "py_func")):
                self._uncopied.append((name, value, content_hash(value)))
        self._copies[id(value)] = value, copy
        return copy


def _compiled_by_numba(value: Any) -> types.FunctionType | None:
    """The function that Numba compiles for the types that come. For types that were given it has done so already."""
    dispatcher = value._dispatcher if type(value).__name__ == "DUFunc" else value
    lazily = getattr(dispatcher, "_can_compile", hasattr(dispatcher, "targetoptions"))
    function = getattr(dispatcher, "py_func", None)
    return function if lazily and isinstance(function, types.FunctionType) else None


def _compiled_again(value: Any, function: types.FunctionType) -> Any:
    """What ``value`` is, of ``function``: compiled for nothing yet."""
    options = {"targetoptions": dict(value.targetoptions)}
    if type(value).__name__ == "DUFunc":
        return type(value)(function, identity=value.identity, **options)
    options["pipeline_class"] = value._compiler.pipeline_class
    if "locals" in inspect.signature(type(value).__init__).parameters:
        options["locals"] = dict(value.locals)
    return type(value)(function, **options)


class _Module(types.ModuleType):
    """A copy of a module, by another name: Numba tells modules apart by that."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(f"{module.__name__}_{next(_count)}")
        named = ("__name__", "__spec__", "__loader__", "__file__")
        vars(self).update({name: value for name, value in vars(module).items() if name not in named})


def _set(module: Any, path: list[str], value: Any) -> None:
    """Into the copy of a module, where that is one."""
    for attribute in path[:-1]:
        module = getattr(module, attribute)
    if isinstance(module, _Module):
        setattr(module, path[-1], value)
