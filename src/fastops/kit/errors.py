"""What the kit raises."""

from __future__ import annotations


class KitError(RuntimeError):
    """Anything that the kit refuses or cannot do; the message begins with the op's name in brackets."""
