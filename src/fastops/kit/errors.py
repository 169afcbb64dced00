"""What the kit raises."""

from __future__ import annotations


class KitError(RuntimeError):
    """Anything that the kit refuses or cannot do; the message begins with the op's name in brackets."""


class CompileError(KitError):
    """A source that does not compile; the message has the compiler's, and where the full source lies."""


class NoCompiler(KitError):
    """No compiler is installed; the message has the command that installs one."""


class ExpressionError(KitError):
    """An expression, a signature or a Python function that cannot be read; the message shows the place."""
