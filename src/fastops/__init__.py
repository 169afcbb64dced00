"""fastops: fused PyTorch operators, forward and backward, on CPU and CUDA.

``python -m fastops.info`` shows what is installed and which kernels run here; ``python -m fastops.selftest`` proves
them.
"""

from __future__ import annotations

from typing import Any

from . import _load

try:
    _load.open_extension()
    from . import _C, nn, ops, reference
    from .capability import capabilities
    from .ops import *  # noqa: F403 - the operators are listed once, there

    __version__ = _C.build_info()["version"]
    __all__ = ["capabilities", "kit", "nn", "reference"]  # noqa: F405 - kit comes by __getattr__
    __all__ += ops.__all__
except (AttributeError, ImportError, OSError) as error:
    _load.failed(error)


def __getattr__(name: str) -> Any:
    """``fastops.kit`` is imported when it is asked for: it takes as long as all the rest."""
    if name == "kit":
        from importlib import import_module

        return import_module("fastops.kit")
    raise AttributeError(f"module 'fastops' has no attribute {name!r}")
