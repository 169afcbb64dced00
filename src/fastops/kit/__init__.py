"""Write your own differentiable op in a few lines: ``docs/writing_your_own_op.md``."""

from __future__ import annotations

from .check import check
from .errors import KitError
from .op import op

__all__ = ["KitError", "check", "op"]
