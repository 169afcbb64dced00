"""fastops for frameworks that take an implementation by name: each module is imported when it is asked for.

================  ==================================================================================
``kernels``       :func:`kernels.mapping` for Hugging Face's ``kernels``
``torchtitan``    overrides of torchtitan's norms, named on its command line
``megatron``      :class:`megatron.Norm` for the layer specs of Megatron
================  ==================================================================================
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = ["kernels", "megatron", "torchtitan"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the module's names. Modules in ``__all__`` are listed without being imported."""
    return sorted({*globals(), *__all__})
