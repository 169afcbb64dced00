"""kit.explain: which code a call runs."""

from __future__ import annotations

from typing import Any

from .errors import KitError


def explain(op: Any, *args: Any, **kwargs: Any) -> str:
    """Which code ``op(*args, **kwargs)`` runs, and why where it is plain PyTorch: ``C++ compiled by /usr/bin/c++``.

    Args:
        op: whatever a function of the kit has returned.
        args, kwargs: what it would be called with. An op may be called with it; a kernel is compiled, not launched.

    Raises:
        KitError: ``op`` is not of the kit, or refuses the arguments.
    """
    if not hasattr(op, "explain"):
        raise KitError(
            f"[kit] explain expected an op that the kit made, got {getattr(op, '__name__', type(op).__name__)}"
        )
    return str(op.explain(*args, **kwargs))
