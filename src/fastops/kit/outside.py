"""What a function reads beyond its parameters: its closure, globals, and attributes of modules among these."""

from __future__ import annotations

import builtins
import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

CONSTANTS = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
_CELLS = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_SITES = ("site-packages", "dist-packages")  # of any prefix: one environment may lie over another
_LIBRARIES = (
    *(Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")),
    Path(__file__).resolve().parents[1],
)


class Unbound(NamedTuple):
    """In place of a value that there is not yet; ``owner``, a cell or the globals, will have it."""

    owner: Any


def closure(function: types.FunctionType) -> dict[str, Any]:
    """Its cells' values now, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: _of_cell(cell) for name, cell in cells}


def bound(function: types.FunctionType) -> dict[str, Any]:
    """Of its cells' values those that there are."""
    return {name: value for name, value in closure(function).items() if not isinstance(value, Unbound)}


def read(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Each name that the function and those inside it look up, dotted for attributes of modules, and its value now.

    Without builtins, and of an installed module's attributes only functions and constants.
    """
    enclosed = closure(function)
    yield from enclosed.items()
    for is_cell, name, *attributes in _paths(function.__code__):
        if is_cell and name not in enclosed:
            continue  # a local of the function, to those inside it
        value = enclosed[name] if is_cell else _of_globals(function, name)
        for attribute in attributes:
            if not (isinstance(value, types.ModuleType) and hasattr(value, attribute)):
                break
            module, value = value, getattr(value, attribute)
        else:
            if attributes:
                if not installed(module.__name__) or isinstance(value, (types.FunctionType, *CONSTANTS)):
                    yield ".".join((name, *attributes)), value
            elif not is_cell and (name in function.__globals__ or not hasattr(builtins, name)):
                yield name, value


def installed(module: str | None) -> bool:
    """Whether it is built in or a library's, which no program changes while it runs, as it may its own modules."""
    name = module or "builtins"
    while name:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and Path(file).is_absolute():  # torch.ops says that it is in "_ops.py"
            return _is_library(file)
        if name in sys.builtin_module_names:
            return True
        name = name.rpartition(".")[0]
    return False


@functools.lru_cache
def _is_library(file: str) -> bool:
    path = Path(file).resolve()
    return any(library in path.parents for library in _LIBRARIES) or any(part in _SITES for part in path.parts)


def _paths(code: types.CodeType) -> dict[tuple[Any, ...], None]:
    """In order: whether it is a cell's, the name, and attributes behind it."""
    found: dict[tuple[Any, ...], None] = {}
    path: tuple[Any, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in (*_GLOBALS, *_CELLS):
            path = (instruction.opname in _CELLS, instruction.argval)
        elif path and instruction.opname in _ATTRIBUTES:
            path = (*path, instruction.argval)
        else:
            path = ()
        if path:
            found[path] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _paths(constant)
    return found


def _of_cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # such as that of the name which an op that is being made will get
        return Unbound(cell)


def _of_globals(function: types.FunctionType, name: str) -> Any:
    if name in function.__globals__:
        return function.__globals__[name]
    return getattr(builtins, name, Unbound(function.__globals__))
