"""Derivatives: dual numbers whose parts are nodes."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Container, Iterable, Sequence

from .nodes import Apply, Name, Node, call, number, postorder
from .nodes import name as variable
from .tangent import ZERO, Tangent


def derivative(node: Node, name: str) -> Node:
    """The derivative of ``node`` by ``name``, an expression as any other.

    ``where`` is differentiated branch by branch, and what a choice makes 0 stays 0. Where a function has no derivative
    (abs at 0, min at a tie, rounding) the result is what torch's autograd gives.
    """
    return _tangent(node, name, number(1.0)).node()


def chain(
    nodes: Sequence[Node], grads: Sequence[str], name: str, came: Iterable[bool] = itertools.repeat(True)
) -> Node:
    """The gradient by ``name`` of outputs ``nodes`` whose own gradients are called ``grads``, of those that ``came``.

    It passes through a branch only where that is taken, so that an infinite gradient does not make the others NaN.
    """
    pairs = itertools.compress(zip(nodes, grads, strict=True), came)
    parts = [_tangent(node, name, variable(grad)) for node, grad in pairs]
    return functools.reduce(operator.add, parts, ZERO).node()


def without(node: Node, absent: Container[str]) -> Node:
    """``node`` without the terms that have one of the names ``absent`` for a factor; elsewhere such a name is 0.

    A gradient that did not come is no factor of 0, which infinity would make NaN.
    """
    zero = number(0.0)
    left: dict[Node, Node | None] = {}
    for x in postorder([node]):
        if not isinstance(x, Apply):
            left[x] = None if isinstance(x, Name) and x.name in absent else x
            continue
        parts = [left[argument] for argument in x.arguments]
        gone = _GONE.get(x.function.name)
        if gone and gone(*[part is None for part in parts]):
            left[x] = None
        elif x.function.name in "+-" and None in parts:
            a, b = parts
            left[x] = a if b is None else b if x.function.name == "+" else -b
        else:
            left[x] = call(x.function.name, *[zero if part is None else part for part in parts])
    return left[node] or zero


# Whether all of it is gone, by which arguments are.
_GONE: dict[str, Callable[..., bool]] = {
    "+": lambda a, b: a and b,
    "-": lambda a, b: a and b,
    "*": lambda a, b: a or b,
    "/": lambda a, b: a,
    "neg": lambda a: a,
    "where": lambda condition, a, b: a and b,
}


def _tangent(node: Node, name: str, seed: Node) -> Tangent:
    """The directional derivative of ``node`` where ``name`` moves by ``seed``."""
    tangents: dict[Node, Tangent] = {}
    for x in postorder([node]):
        if isinstance(x, Apply):
            of_arguments = tuple(tangents[argument] for argument in x.arguments)
            constant = all(tangent.zero for tangent in of_arguments)
            tangents[x] = ZERO if constant else x.function.tangent(x, x.arguments, of_arguments)
        else:
            tangents[x] = Tangent(seed) if isinstance(x, Name) and x.name == name else ZERO
    return tangents[node]
