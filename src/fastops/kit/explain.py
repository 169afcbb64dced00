"""kit.explain: which code a call runs."""

from __future__ import annotations

from typing import Any

from .errors import KitError


def explain(op: Any, *args: Any, **kwargs: Any) -> str:
    """Which code ``op`` runs for these arguments: a compiled kernel and its compiler, or plain PyTorch and why.

    Raises:
        KitError: ``op`` was not made by elementwise, reduction, numba_op or op.
    """
    try:
        explained = op.explain
    except AttributeError:
        raise KitError(f"[kit] explain expected an op of the kit, got {type(op).__name__}") from None
    return str(explained(*args, **kwargs))
