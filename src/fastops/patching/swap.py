"""How a module is swapped and put back: its class becomes a subclass made once per (class, form).

A finder is a function ``find(site) -> Swap | str | None`` in the table of ``finders.py``. It is asked about each module
of the model, parents before their children:

- None: this is none of its kind, the next finder is asked.
- A str: it is one, and this is the one reason why it is left. The report lists it.
- A :class:`Swap`: what was *proved*, with data of its own on a copy of the module, to compute the same.

A finder changes nothing: the module, its parameters and its class are read, and ``patch`` does what the swap says.

::

    def find(site: Site) -> Swap | str | None:
        if not looks_like_one(site.module):
            return None
        if why := refuted(site.module):
            return why
        return Swap("square", form=("square",), members=lambda: {"forward": lambda self, x: square(x)})
"""

from __future__ import annotations

import copy
import copyreg
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

Module = torch.nn.Module
Members = Mapping[str, Any]


@dataclass(frozen=True)
class Site:
    """A module that a finder is asked about.

    ``model`` is the root that was handed to ``patch``, as ``verify`` and ``save`` were, and ``name`` is the module's in
    it. ``proofs`` keeps what was proved during one call of ``patch``, for all its sites: see
    :func:`fastops.patching.proof.remembered`.
    """

    name: str
    module: Module
    model: Module
    verify: str = "close"
    save: str = "auto"
    proofs: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Swap:
    """What becomes of a module.

    Attributes:
        op: what the report and ``extra_repr`` say it is now, such as ``"rms_norm(eps=variance_epsilon)"``.
        form: all that ``members`` depends on beside the module's class. Modules of one class and one form share the
            class that is made of them.
        members: returns what the subclass defines, usually ``forward``; called once per (class, form).
        instance: entries of the module's own ``__dict__``. What was there before comes back by undo, and goes into
            pickles. Prefer ``members``: what is in an instance does not reach DataParallel's replicas rightly.
        unused: children, by their names in the module, that the swapped forward no longer calls; they are not asked
            about.
        partners: other modules, by their names in the model, that are swapped with this one.
        left: the reason why a part of what the forward calls stays as it is. The report lists it too.
        counts_calls: whether a call may go back to the original. The report then has the module's count of calls, which
            the forward keeps: see :mod:`fastops.patching.calls`.
    """

    op: str
    form: Hashable
    members: Callable[[], Members]
    instance: Members = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    partners: Mapping[str, Swap] = field(default_factory=dict)
    left: str | None = None
    counts_calls: bool = False


Finder = Callable[[Site], "Swap | str | None"]

_MISSING: Any = type("_MISSING", (), {})  # a class, which deepcopy leaves as it is
_newobj: Any = copyreg.__newobj__  # type: ignore[attr-defined]
_reconstructor: Any = copyreg._reconstructor  # type: ignore[attr-defined]
# A class goes when its last module does: the key holds the original class, and only as long as the value lives.
_classes: WeakValueDictionary[tuple[type, Hashable, tuple[str, ...]], type] = WeakValueDictionary()
# Of each swapped module that has entries of ours in its __dict__, what was there before.
_before: WeakKeyDictionary[Module, dict[str, Any]] = WeakKeyDictionary()


def is_swapped(module: Module) -> bool:
    """Whether its class is one of ours, or made of one, as ``fully_shard`` does."""
    return hasattr(type(module), "_fastops_original")


def unused_children(module: Module) -> tuple[str, ...]:
    """Those that a swapped module's forward does not call."""
    return getattr(type(module), "_fastops_unused", ())


def with_parameter_named(forward: FunctionType, name: str) -> FunctionType:
    """``forward(self, input)`` whose one argument has another name, so that callers by keyword still reach it."""

    def new(old: str) -> str:  # a variable that has that name already gets another
        return name if old == "input" else f"{old}_" if old == name else old

    code: CodeType = forward.__code__
    code = code.replace(co_varnames=tuple(map(new, code.co_varnames)), co_freevars=tuple(map(new, code.co_freevars)))
    return FunctionType(code, forward.__globals__, "forward", None, forward.__closure__)


def swapped_class(cls: type, swap: Swap) -> type:
    """The subclass of ``cls`` for a swap: of the same name, pickled as ``cls``, deep-copied as itself."""
    key = cls, swap.form, swap.unused
    made = _classes.get(key)
    if made is None:
        made = _classes[key] = _make(cls, swap)
    return made


def _make(cls: type, swap: Swap) -> type:
    base: Any = cls

    def extra_repr(self: Module) -> str:
        of_class = base.extra_repr(self)
        return f"{of_class}, fastops {swap.op}" if of_class else f"fastops {swap.op}"

    def reduced(self: Module, protocol: Any) -> Any:
        """As the original class would: a file needs no fastops to be read."""
        if type(self) is not made:  # of a class that was made of this one since
            return base.__reduce_ex__(self, protocol)
        twin: Any = object.__new__(cls)
        twin.__dict__.update(self.__dict__)
        _put(twin, _before.get(self, {}))
        make, arguments, *state = twin.__reduce_ex__(protocol)
        if make is _newobj:  # pickle would have it that the class is this one
            make, arguments = _reconstructor, (cls, object, None)
        return make, arguments, *state

    members = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_fastops_original": cls,
        "_fastops_unused": swap.unused,
        "extra_repr": extra_repr,
        "__reduce_ex__": reduced,
        "__copy__": _copy,
        **({} if hasattr(cls, "__deepcopy__") else {"__deepcopy__": _deepcopy}),
        **swap.members(),
    }
    made = type(cls)(cls.__name__, (cls,), members)
    return made


def _copy(self: Module) -> Module:
    return _twin(self, self.__dict__, _before.get(self))


def _deepcopy(self: Module, memo: dict[int, Any]) -> Module:
    memo[id(self)] = twin = _twin(self, {}, None)  # before its parts, which may lead back to it
    return _twin(self, copy.deepcopy(self.__dict__, memo), copy.deepcopy(_before.get(self), memo), twin)


def _twin(self: Module, entries: Members, before: Members | None, twin: Module | None = None) -> Module:
    twin = object.__new__(type(self)) if twin is None else twin
    twin.__dict__.update(entries)
    if before is not None:
        _before[twin] = dict(before)
    return twin


def _put(module: Module, entries: Members) -> None:
    """Into the module's ``__dict__`` alone: neither parameters nor properties are meant."""
    for name, value in entries.items():
        if value is _MISSING:
            module.__dict__.pop(name, None)
        else:
            module.__dict__[name] = value


@dataclass(frozen=True)
class Applied:
    """A module that was swapped, and what undo needs."""

    name: str
    module: Module
    before: type
    now: type

    def undo(self) -> None:
        _put(self.module, _before.pop(self.module, {}))
        self.module.__class__ = self.before


def apply(name: str, module: Module, swap: Swap) -> Applied:
    """Swap one module. Raises TypeError where Python does not let its class be changed."""
    before = type(module)
    now = swapped_class(before, swap)
    module.__class__ = now
    if swap.instance:
        _before[module] = {entry: module.__dict__.get(entry, _MISSING) for entry in swap.instance}
        _put(module, swap.instance)
    return Applied(name, module, before, now)
