"""Write your own differentiable op in a few lines: ``docs/writing_your_own_op.md``."""

from __future__ import annotations

from .check import check
from .cpp_op import cpp_op
from .cuda_kernel import cuda_kernel
from .elementwise import elementwise
from .errors import CompileError, ExpressionError, KitError, NoCompiler
from .op import op

__all__ = ["CompileError", "ExpressionError", "KitError", "NoCompiler", "check", "cpp_op", "cuda_kernel", "elementwise", "op"]
