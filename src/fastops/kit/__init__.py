"""Write your own differentiable op in a few lines: ``docs/writing_your_own_op.md``."""

from __future__ import annotations

from .check import CheckFailed, check
from .cpp_op import cpp_op
from .cuda_kernel import cuda_kernel
from .elementwise import Elementwise, elementwise
from .errors import CompileError, ExpressionError, KitError, NoCompiler
from .explain import explain
from .numba_op import numba_op
from .op import op
from .reduction import Reduce, reduction

__all__ = [
    "CheckFailed",
    "CompileError",
    "Elementwise",
    "ExpressionError",
    "KitError",
    "NoCompiler",
    "Reduce",
    "check",
    "cpp_op",
    "cuda_kernel",
    "elementwise",
    "explain",
    "numba_op",
    "op",
    "reduction",
]
