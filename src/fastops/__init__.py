"""fastops: fused PyTorch operators, forward and backward, on CPU and CUDA.

``python -m fastops.info`` shows what is installed and which kernels run here; ``python -m fastops.selftest`` compares
them with float64.
"""

from __future__ import annotations

from typing import Any

from . import _load

# What few ask for, or takes as long as all the rest, is imported when it is asked for: names and where they are.
_LATE = {name: (f"fastops.{name}", "") for name in ("integrations", "kit")}
_LATE |= {name: ("fastops.overrides", name) for name in ("disable", "enable", "enabled")}
_LATE |= {name: ("fastops.patching", name) for name in ("patch", "patched")}

try:
    _load.open_extension()
    from . import _C, nn, ops, reference
    from .capability import capabilities
    from .cpp import library_path
    from .ops import *  # noqa: F403 - the operators are listed once, there

    __version__ = _C.build_info()["version"]
    __all__ = ["capabilities", "library_path", "nn", "reference", *_LATE]
    __all__ += ops.__all__
except (AttributeError, ImportError, OSError) as error:
    _load.failed(error)


def __getattr__(name: str) -> Any:
    if name in _LATE:
        from importlib import import_module

        module, attribute = _LATE[name]
        found = import_module(module)
        return getattr(found, attribute) if attribute else found
    raise AttributeError(f"module 'fastops' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the module's names. Names in ``_LATE`` are listed without being imported."""
    return sorted({*globals(), *_LATE})
