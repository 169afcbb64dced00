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
        self._copy = self._of_function(inspect.unwrap(given))
        self.content_hash = content_hash(inspect.unwrap(given), self._constants)

    @property
    def function(self) -> types.FunctionType:
        """The copy.

        Raises:
            KitError: its content has changed since.
        """
        for name, value, content in self._uncopied:
            if content_hash(value) != content:
                raise KitError(
                    f"[{self._copy.__name__}] expected {name} as it was at the definition, got another content"
                )
        return self._copy

    def __reduce__(self) -> Any:
        return Frozen, (self._given,)

    def __copy__(self) -> Frozen:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self

    def _of_function(self, given: types.FunctionType) -> types.FunctionType:
        if id(given) in self._copies:
            copied: types.FunctionType = self._copies[id(given)][1]
            return copied
        scope: dict[str, Any] = {"__builtins__": builtins, "__name__": given.__module__}
        cells = {name: types.CellType() for name in given.__code__.co_freevars}
        copy = types.FunctionType(given.__code__, scope, given.__name__, given.__defaults__, tuple(cells.values()))
        copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = given.__kwdefaults__, given.__qualname__, given.__doc__
        self._copies[id(given)] = given, copy  # before what it calls, which may be itself
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
        return copy

    def _of(self, name: str, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)][1]
        copy = value
        if hasattr(value, "py_func") and hasattr(value, "targetoptions"):
            # What was compiled for types that it was given, all at once, is as it was then.
            copy = self._of_jitted(value, value.py_func) if value._can_compile else value
        elif type(value).__name__ == "DUFunc":
            copy = self._of_ufunc(value)
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
            if not (value is None or isinstance(value, CONSTANTS)):
                self._uncopied.append((name, value, content_hash(value)))
        self._copies[id(value)] = value, copy
        return copy

    def _of_jitted(self, value: Any, function: types.FunctionType) -> Any:
        """The same of a copy, for which nothing is compiled yet."""
        options = {"targetoptions": dict(value.targetoptions), "pipeline_class": value._compiler.pipeline_class}
        if "locals" in inspect.signature(type(value).__init__).parameters:
            options["locals"] = dict(value.locals)
        return type(value)(self._of_function(function), **options)

    def _of_ufunc(self, value: Any) -> Any:
        function = value._dispatcher.py_func
        return type(value)(
            self._of_function(function), identity=value.identity, targetoptions=dict(value.targetoptions)
        )


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
