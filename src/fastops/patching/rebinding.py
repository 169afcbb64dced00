"""A function with some of its globals bound to other values, while the module that defines it stays as it is."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any


def wrappers(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The function, what it wraps, and so on: by ``__wrapped__``, as :func:`functools.wraps` sets it."""
    chain = [function]
    while (inner := getattr(chain[-1], "__wrapped__", None)) is not None and inner not in chain:
        chain.append(inner)
    return chain


def loaded_globals(code: CodeType) -> set[str]:
    """Names that the code, or a function or class in it, looks up among the globals."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(loaded_globals(constant) for constant in code.co_consts if isinstance(constant, CodeType)))


def rebound(function: Callable[..., Any], values: Mapping[str, Any]) -> FunctionType | None:
    """The function anew, with the innermost of its wrappers' globals ``values`` bound to others.

    It has the same code, closure, defaults, annotations and attributes. Its other globals are those of the defining
    module at the time of each look-up. Decorators are made anew around it where they hold what they wrap in their
    closure; None: one does not, or something in the chain is not a Python function.
    """
    chain = wrappers(function)
    if not all(type(link) is FunctionType for link in chain):
        return None
    *outer, innermost = chain
    made = _again(innermost, _live(innermost.__globals__, values), innermost.__closure__)
    for link in reversed(outer):
        cells = link.__closure__ or ()
        held = [_contents(cell) is link.__dict__["__wrapped__"] for cell in cells]
        if not any(held):
            return None
        closure = tuple(CellType(made) if holds else cell for cell, holds in zip(cells, held, strict=True))
        made = _again(link, link.__globals__, closure)
        made.__dict__["__wrapped__"] = closure[held.index(True)].cell_contents
    return made


def _again(function: Any, namespace: dict[str, Any], closure: tuple[CellType, ...] | None) -> FunctionType:
    # The copy of the code has caches of its own: CPython's of globals, and Dynamo's of what it compiled.
    code = function.__code__.replace()
    made = FunctionType(code, namespace, function.__name__, function.__defaults__, closure)
    made.__kwdefaults__ = None if function.__kwdefaults__ is None else dict(function.__kwdefaults__)
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    made.__dict__.update(function.__dict__)
    _take_annotations(made, function)
    return made


def _take_annotations(made: Any, function: Any) -> None:
    if hasattr(function, "__annotate__"):  # from Python 3.14 on, where they are evaluated when they are asked for
        made.__annotate__ = function.__annotate__
    else:
        made.__annotations__ = function.__annotations__


def _live(namespace: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Globals that hold ``values`` and find all other names in ``namespace`` when they are looked up.

    CPython asks ``__missing__`` of globals that are a subclass of dict: 0.2 us a name, because this one is in C, and
    0.5 if it were a function of Python. A copy would cost nothing and miss what the module changes later.
    """
    view = type("Globals", (dict,), {"__slots__": (), "__missing__": staticmethod(namespace.__getitem__)})
    return view(values, __builtins__=namespace["__builtins__"])


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty one
        return None


def global_values(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """The globals, with their values of now, that the innermost of a function's wrappers looks up."""
    innermost = wrappers(function)[-1]
    if type(innermost) is FunctionType:
        for name in sorted(loaded_globals(innermost.__code__) & innermost.__globals__.keys()):
            yield name, innermost.__globals__[name]
