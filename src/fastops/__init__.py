"""fastops: fused PyTorch operators, forward and backward, on CPU and CUDA.

``python -m fastops.info`` shows what is installed and which kernels run here; ``python -m fastops.selftest`` proves
them.
"""

from __future__ import annotations

from . import _load

try:
    _load.open_extension()
    from . import _C, nn, ops, reference
    from .capability import capabilities
    from .ops import *  # noqa: F403 - the operators are listed once, there

    __version__ = _C.build_info()["version"]
    __all__ = ["capabilities", "nn", "reference"]
    __all__ += ops.__all__
except (AttributeError, ImportError, OSError) as error:
    _load.failed(error)
