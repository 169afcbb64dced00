"""torch's own functions by our kernels: ``enable()``, ``disable()``, ``with enabled(...)``.

aten's operators are overridden at the CPU and CUDA keys, beneath autograd: aten's formulas, sharding rules, vmap and
autocast stay as they are, and ``torch.compile``, which decomposes these operators before, keeps its own fusion.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from . import _C

_KEYS = tuple(_C.override_keys())  # "CPU", and "CUDA" if this build has its kernels
_lock = threading.RLock()
# (aten operator, key) -> the kernel that ours is on top of; None: there was none.
_before: dict[tuple[str, str], Any] = {}
_was: dict[str, str] = {}  # function -> where that kernel came from
_library: torch.library.Library | None = None


@dataclass(frozen=True)
class Enabled:
    """What :func:`enable` put in force: torch's function -> what ran before it, ``"aten"`` or whose override."""

    functions: dict[str, str]

    def __str__(self) -> str:
        where = ", ".join(_KEYS).lower()
        return " · ".join(f"{name} {where} (was: {was})" for name, was in self.functions.items()) or "nothing"


def enable(*functions: str) -> Enabled:
    r"""Lets torch's own functions run our kernels, in the whole process, until :func:`disable`.

    ``layer_norm``: :func:`torch.nn.functional.layer_norm`, :class:`torch.nn.LayerNorm`; ``rms_norm``: the same of
    ``rms_norm``; ``softmax``, ``log_softmax``: those of :mod:`torch.nn.functional`, and with the latter
    :func:`torch.nn.functional.cross_entropy`. Forward and backward of float16, bfloat16, float32 and float64 tensors on
    the CPU and on GPUs; other calls run what ran before, whose errors come out as :class:`RuntimeError`.

    Args:
        functions: names of these; none for all of them.

    Returns:
        What is in force, for people to read: ``print(fastops.enable())``.

    Raises:
        ValueError: an unknown name.
        RuntimeError: a function that this PyTorch has with another signature.

    Calls count: as often as a function was enabled it must be disabled. A forward that ran while a function was enabled
    may have its backward after it was disabled, and the reverse, if aten takes the arguments too: its layer_norm
    refuses rows of a half type with float32 parameters on a GPU, and ours takes them. It is the process that is
    switched and not the thread. PyTorch's dispatcher does not protect a kernel that is replaced from the threads that
    are calling it: let none run these functions while the first :func:`enable`, or the last :func:`disable`, of one is
    going on. Between these, threads may call both at any time.

    Example::

        >>> fastops.enable("layer_norm", "rms_norm")
        >>> model(x)  # a model of torch.nn
    """
    names = _checked(functions)
    with _lock:
        for name in names:
            if not _C.is_enabled(name):
                _keep_what_is_there(name)
            _C.enable(name)
        return Enabled({name: _was[name] for name in names})


def disable(*functions: str) -> None:
    """Takes back one :func:`enable` of these functions, of all where none is named; what ran before it runs again.

    Raises:
        ValueError: an unknown name.
    """
    names = _checked(functions)
    with _lock:
        for name in names:
            _C.disable(name)


@contextmanager
def enabled(*functions: str) -> Iterator[Enabled]:
    """Call :func:`enable` when a ``with`` block begins and :func:`disable` when it ends.

    The functions are switched for the whole process while the block runs: calls in other threads run our kernels too.
    If other threads compute while blocks begin and end, put one :func:`enable` around all of them, as it says there.

    Example::

        >>> with fastops.enabled():
        ...     model(x).sum().backward()
    """
    result = enable(*functions)
    try:
        yield result
    finally:
        disable(*functions)


def was(function: str) -> str:
    """What ran before a function was enabled; by C++ that may have been without us."""
    return _was.get(function, "aten")


def _checked(functions: tuple[str, ...]) -> tuple[str, ...]:
    known = tuple(_C.overridden())
    for name in functions:
        if name not in known:
            raise ValueError(f"[enable] a function must be one of {', '.join(known)}, got {name!r}")
    return tuple(dict.fromkeys(functions)) or known


def _keep_what_is_there(function: str) -> None:
    """Behind ``fastops::<operator>_before``, which our kernels call for what they do not take."""
    global _library
    if _library is None:
        _library = torch.library.Library("fastops", "FRAGMENT")
        _warn_once()
        for operators in _C.overridden().values():
            for operator in operators:
                _library.impl(f"{operator}_before", _calling(operator), "CompositeExplicitAutograd")
    owners = []
    for operator, schema in _C.overridden()[function].items():
        found = getattr(torch.ops.aten, operator).default
        if str(found._schema) != f"aten::{operator}{schema}":
            raise RuntimeError(
                f"[enable] aten::{operator} of PyTorch {torch.__version__} must be {schema}, got {found._schema}"
            )
        for key in _KEYS:
            if _before.get((operator, key), "not asked") is None:
                continue  # ours stays, and would be taken for one before it
            there = torch._C._dispatch_has_computed_kernel_for_dispatch_key(f"aten::{operator}", key)
            _before[operator, key] = torch.library.get_kernel(found, key) if there else None
            if there:
                owners.append(_whose(f"aten::{operator}", key))
    _was[function] = ", ".join(dict.fromkeys(owner for owner in owners if owner != "aten")) or "aten"


def _whose(name: str, key: str) -> str:
    """By the dispatcher's listing, which says of each kernel in what file it was registered."""
    lines = torch._C._dispatch_dump_table(name).splitlines()
    line = next((line for line in lines if line.startswith(f"{key}: ")), "")
    return "aten" if "/ATen/" in line else line.partition("registered at ")[2].split(" ")[0]


def _calling(operator: str) -> Any:
    def before(first: torch.Tensor, *others: Any) -> Any:
        key = "CUDA" if first.is_cuda else "CPU"
        kernel = _before.get((operator, key))
        if kernel is None:
            return _GRADIENTS[operator](first, *others)
        return kernel.call_boxed(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)), first, *others)

    return before


def _rms_norm_gradients(
    grad: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: list[int],
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    output_mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:
    from ._norm import rms_backward

    dims = len(normalized_shape)
    each = rstd.reshape(*input.shape[: input.dim() - dims], *[1] * dims)
    need_input, need_weight = output_mask
    grads = rms_backward(
        grad, None, input, dims, weight, need_input, need_weight, eps=None, weight_offset=0.0, rstd=each
    )
    return tuple(g if needed else None for g, needed in zip(grads, output_mask, strict=True))


# Of operators that aten has no kernel of at one of the keys.
_GRADIENTS = {"_fused_rms_norm_backward": _rms_norm_gradients}


def _warn_once() -> None:
    """The dispatcher warns of the first kernel in a process that takes another's place, which here is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = torch.library.Library("fastops", "FRAGMENT")
        library.define("overridden_kernel(Tensor x) -> Tensor")
        for _ in range(2):
            library.impl("overridden_kernel", lambda x: x, "CPU", allow_override=True)
        library._destroy()
