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
    from .cpp import library_path
    from .ops import *  # noqa: F403 - the operators are listed once, there

    __version__ = _C.build_info()["version"]
    __all__ = ["capabilities", "disable", "enable", "enabled", "kit", "library_path", "nn", "reference"]  # noqa: F405 - kit comes by __getattr__
    __all__ += ops.__all__
except (AttributeError, ImportError, OSError) as error:
    _load.failed(error)


_LATE = {"kit": "fastops.kit"} | dict.fromkeys(("disable", "enable", "enabled"), "fastops.overrides")


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for, since most do not: ``fastops.kit`` takes as long as all the rest."""
    if name in _LATE:
        from importlib import import_module

        module = import_module(_LATE[name])
        return module if name == "kit" else getattr(module, name)
    raise AttributeError(f"module 'fastops' has no attribute {name!r}")
