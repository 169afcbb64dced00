"""The rules of all operators, and when DTensor gets them: where the first DTensor comes to one, not at import."""

from __future__ import annotations

import sys
import threading

import torch

from .split import Rule

RULES: dict[torch._ops.OpOverload, Rule] = {}

_MODULE = "torch.distributed.tensor"
_lock = threading.RLock()
_why_not: str | None = None  # None: nobody has asked for them; "": they are registered


def declare(op: torch._ops.OpOverload, rule: Rule) -> None:
    if not isinstance(op, torch._ops.OpOverload):  # a plain function in the place of one
        return
    with _lock:
        RULES[op] = rule
        if _why_not == "":
            from .dtensor import register

            register({op: rule})


def registered_now() -> bool:
    """Whether they are registered since this call, and whoever had no rule before it may ask again."""
    global _why_not
    with _lock:
        if _why_not is not None or _MODULE not in sys.modules:
            return False
        try:
            from .dtensor import register

            register(RULES)
            _why_not = ""
        except (AttributeError, ImportError, TypeError) as error:  # what it needs is private to torch
            _why_not = f"PyTorch {torch.__version__} does not take them: {error}"
        return not _why_not


def registered_before_tracing() -> bool:
    registered_now()
    return True


# Dynamo calls it where it would trace it. What torch.compiler has for this imports all of Dynamo.
registered_before_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def state() -> str:
    """For :func:`fastops.capabilities`."""
    registered_now()
    if _why_not is None:
        return f"registered when {_MODULE} is there"
    return f"no rules: {_why_not}" if _why_not else "registered"


def is_sharded(x: object) -> bool:
    """Whether it is a DTensor."""
    return type(x) is not torch.Tensor and hasattr(x, "placements") and hasattr(x, "device_mesh")
