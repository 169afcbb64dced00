"""Derivatives: dual numbers whose parts are nodes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from .nodes import Apply, Name, Node, number, postorder
from .nodes import name as variable
from .tangent import ZERO, Tangent


def derivative(node: Node, name: str) -> Node:
    """The derivative of ``node`` by ``name``, an expression as any other.

    ``where`` is differentiated branch by branch, and what a choice makes 0 stays 0. Where a function has no derivative
    (abs at 0, min at a tie, rounding) the result is what torch's autograd gives.
    """
    return _tangent(node, name, number(1.0)).node()


def chain(nodes: Sequence[Node], grads: Sequence[str], name: str) -> Node:
    """The gradient by ``name`` of outputs ``nodes`` whose own gradients are called ``grads``.

    It passes through a branch only where that is taken, so that an infinite gradient does not make the others NaN.
    """
    parts = [_tangent(node, name, variable(grad)) for node, grad in zip(nodes, grads, strict=True)]
    return functools.reduce(operator.add, parts, ZERO).node()


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
