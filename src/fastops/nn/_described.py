"""What the modules' reprs share."""

from __future__ import annotations

from typing import Any

import torch


def described(module: torch.nn.Module, **defaults: Any) -> str:
    """What of a module is not the default, for its repr."""
    given = ((name, getattr(module, name)) for name in defaults)
    return "".join(f", {name}={value!r}" for name, value in given if value != defaults[name])
