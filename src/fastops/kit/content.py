"""A hash of what Python values do, functions above all, so that a changed op gets another name.

torch.compile keeps graphs on disk and knows a custom op by its name alone. Hence equal hashes must mean equal
behaviour. What cannot be read, such as an instance of some class, hashes differently in each process: that costs a
compilation and is never wrong.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import secrets
import sys
import types
from pathlib import Path
from typing import Any

import torch

from .outside import CONSTANTS, Unbound, closure, installed, read

_MUTABLE = (list, dict, set, torch.Tensor, types.CellType)
_UNREAD = secrets.token_hex()  # in no other process


def content_hash(*values: Any) -> str:
    """Of functions the code, defaults, closures and the globals they name; of modules the file; of data its value."""
    return content_of(*values)[0]


def content_of(*values: Any) -> tuple[str, list[Any]]:
    """That hash, and what may change after it was taken: equal content then means equal behaviour no longer."""
    described, mutable = [], []
    for value in values:
        seen: dict[int, tuple[int, Any]] = {}
        described.append(_described(value, seen, None))
        mutable += [found for _, found in seen.values() if isinstance(found, _MUTABLE) or _of_numpy(found)]
    return hashlib.sha256(repr(described).encode()).hexdigest(), mutable


def _described(value: Any, seen: dict[int, tuple[int, Any]], home: dict[str, Any] | None) -> Any:
    """Nested tuples of text that say what ``value`` is.

    ``seen`` ends the recursion of functions. ``home`` is the globals of the outermost function: those are followed, as
    are all that a program may change; for a function of an installed module stands that module's file.
    """
    if value is None or isinstance(value, CONSTANTS):
        return type(value).__name__, repr(value)
    if isinstance(known := getattr(value, "content_hash", None), str):
        return "kit", known
    if isinstance(value, Unbound):  # a new value each time; its owner is one
        seen.setdefault(id(value.owner), (len(seen), value.owner))
        return "unbound", _UNREAD
    if id(value) in seen:
        return "again", seen[id(value)][0]
    seen[id(value)] = len(seen), value  # held, so that no later value gets its id
    follow = functools.partial(_described, seen=seen, home=home)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [follow(v) for v in value]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(repr(follow(v)) for v in value)
    if isinstance(value, dict):
        return "dict", [(follow(k), follow(v)) for k, v in value.items()]
    if isinstance(value, functools.partial):
        return "partial", [follow(v) for v in (value.func, value.args, tuple(value.keywords.items()))]
    if isinstance(value, types.FunctionType):
        return _of_function(value, seen, home or value.__globals__)
    if isinstance(value, types.CodeType):
        return value.co_code, value.co_names, value.co_varnames, [follow(c) for c in value.co_consts]
    if isinstance(value, types.ModuleType):
        return "module", _file(value.__name__)
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return "named", value.__qualname__, _file(value.__module__)
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_meta:
        copy = value.detach().resolve_conj().resolve_neg().cpu().contiguous()
        data = ctypes.string_at(copy.data_ptr(), copy.nbytes)  # NumPy need not be there
        return "tensor", str(value.dtype), value.shape, hashlib.sha256(data).hexdigest()
    if _of_numpy(value):
        return "numpy", str(value.dtype), value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if wrapped := getattr(value, "__wrapped__", None):  # such as what @numba.njit returns
        return type(value).__qualname__, follow(wrapped)
    return "unread", id(value), _UNREAD


def _of_numpy(value: Any) -> bool:
    """An array or a number of NumPy's, whose bytes are its value."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes") and not value.dtype.hasobject


def _of_function(function: types.FunctionType, seen: dict[int, tuple[int, Any]], home: dict[str, Any]) -> Any:
    follow = functools.partial(_described, seen=seen, home=home)
    named = tuple((function.__kwdefaults__ or {}).items())
    parts = [follow(v) for v in (function.__code__, function.__defaults__, named)]
    if function.__globals__ is not home and installed(function.__module__):
        return "function", parts, [follow(v) for v in closure(function).values()], _file(function.__module__)
    used = list(read(function))
    if any(name.partition(".")[0] in function.__globals__ for name, _ in used):
        seen.setdefault(id(function.__globals__), (len(seen), function.__globals__))  # which may change
    return "function", parts, [(name, follow(value)) for name, value in used]


@functools.lru_cache
def _file(module: str | None) -> tuple[str, str]:
    found = sys.modules.get(module or "builtins")
    file = getattr(found, "__file__", None)
    version = str(getattr(found, "__version__", ""))
    if file is None:  # built in, or typed by hand
        return f"{module}", _UNREAD if module == "__main__" else sys.version
    try:
        return f"{module} {version}", hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # it is in an archive, or was removed
        return f"{module} {version}", _UNREAD
