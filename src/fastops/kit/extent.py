"""Sizes of a launch: numbers, callables, or expressions such as ``ceil(n / 256)`` over a call's arguments."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .errors import KitError
from .number import integer

_LONGEST = 1000  # characters; also what keeps the parser's recursion small
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "numel": lambda tensor: tensor.numel(),
    "size": lambda tensor, dim: tensor.size(dim),
}
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)

Size = int | str | Callable[..., int]


class Launch:
    """Grid, block and dynamic shared memory of a kernel, as functions of its arguments."""

    def __init__(
        self,
        name: str,
        parameters: Sequence[str],
        grid: Size | Sequence[Size],
        block: Size | Sequence[Size],
        shared: Size,
    ) -> None:
        self.name = name
        self.described = (grid, block, shared)
        self._grid = _extents("grid", grid, parameters, name)
        self._block = _extents("block", block, parameters, name)
        self._shared = (as_function(shared, parameters, name),)

    def __call__(self, arguments: Sequence[Any]) -> tuple[tuple[int, ...], tuple[int, ...], int] | None:
        """Blocks, threads and bytes; None for an empty grid, of which nothing is launched.

        Raises:
            KitError: no launch has such sizes.
        """
        grid = self._sizes("grid", self._grid, _MAX_GRID, arguments)
        block = self._sizes("block", self._block, _MAX_BLOCK, arguments)
        if block[0] * block[1] * block[2] > _MAX_THREADS:
            raise KitError(f"[{self.name}] block must have at most {_MAX_THREADS} threads, got {block}")
        if 0 in grid:
            return None
        if 0 in block:
            raise KitError(f"[{self.name}] block must have at least one thread, got {block}")
        (shared,) = self._sizes("shared", self._shared, (2**31 - 1,), arguments)
        return grid, block, shared

    def _sizes(
        self, what: str, extents: Sequence[Callable[..., int]], most: Sequence[int], arguments: Sequence[Any]
    ) -> tuple[int, ...]:
        try:
            given = [_exact(x) for x in arguments]
            sizes = tuple(_exact(size(*given)) for size in extents)
        except (ArithmeticError, AttributeError, IndexError, TypeError) as error:
            raise KitError(f"[{self.name}] {what} cannot be computed: {type(error).__name__}: {error}") from error
        for size, limit in zip(sizes, most, strict=True):
            if not isinstance(size, int) or not 0 <= size <= limit:
                raise KitError(f"[{self.name}] {what} must be integers from 0 to {list(most)}, got {list(sizes)}")
        return sizes


def _exact(x: Any) -> Any:
    """An integer of NumPy's as Python's, which does not overflow; all else as it is."""
    try:
        return x if type(x) in (int, Tensor) else integer(x)
    except TypeError:
        return x


def _extents(what: str, given: Any, names: Sequence[str], where: str) -> tuple[Callable[..., int], ...]:
    listed = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if not 1 <= len(listed) <= 3:
        raise KitError(f"[{where}] {what} must have one to three sizes, got {len(listed)}")
    return tuple(as_function(size, names, where) for size in (*listed, 1, 1)[:3])


def as_function(what: Size, names: Sequence[str], where: str) -> Callable[..., int]:
    """A function of a call's arguments.

    An expression may have integers, the arguments' names, ``+ - * // %``, ``ceil(a / b)``, ``min``, ``max``,
    ``numel(x)`` and ``size(x, dim)``; integers are exact.

    Raises:
        KitError: it has something else.
    """
    if callable(what):
        return what
    if not isinstance(what, str):
        try:
            size = integer(what)
        except TypeError:
            got = type(what).__name__
            raise KitError(f"[{where}] a size must be an integer, an expression or a callable, got {got}") from None
        return lambda *arguments: size
    try:
        if len(what) > _LONGEST:
            raise ValueError(f"longer than {_LONGEST} characters")
        body = _checked(ast.parse(what.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise KitError(f"[{where}] cannot use the size {what[:80]!r}: {error}") from None
    parameters = ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, body)))
    scope: dict[str, Any] = {"__builtins__": {}} | {_renamed(name): function for name, function in _FUNCTIONS.items()}
    return eval(compile(tree, f"<size of {where}>", "eval"), scope)


def _checked(node: ast.expr, names: Sequence[str]) -> ast.expr:
    """The same tree, of nodes that are allowed alone, so that evaluating it can do nothing else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node
    if isinstance(node, ast.Name) and node.id in names:
        return node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return ast.UnaryOp(node.op, _checked(node.operand, names))
    if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
        return ast.BinOp(_checked(node.left, names), node.op, _checked(node.right, names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "ceil" and len(node.args) == 1:
            return _ceil(node.args[0], names)
        if node.func.id in _FUNCTIONS:
            function = ast.Name(_renamed(node.func.id), ast.Load())
            return ast.Call(function, [_checked(argument, names) for argument in node.args], [])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        raise ValueError("a quotient must be rounded: ceil(a / b), or a // b")
    raise ValueError(
        f"it may have integers, {', '.join(names)}, + - * // %, ceil(a / b), {', '.join(_FUNCTIONS)}; "
        f"not {ast.unparse(node)!r}"
    )


def _ceil(node: ast.expr, names: Sequence[str]) -> ast.expr:
    """-(-a // b): no float comes in, which would be wrong from 2^53 on."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
        return _checked(node, names)
    negative = ast.UnaryOp(ast.USub(), _checked(node.left, names))
    return ast.UnaryOp(ast.USub(), ast.BinOp(negative, ast.FloorDiv(), _checked(node.right, names)))


def _renamed(function: str) -> str:
    """A name that no argument has."""
    return f"function {function}"
