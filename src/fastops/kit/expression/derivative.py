"""Derivatives: dual numbers whose parts are nodes."""

from __future__ import annotations

from collections.abc import Sequence

from .nodes import Apply, Name, Node, is_number, number, postorder
from .nodes import name as variable


def derivative(node: Node, name: str) -> Node:
    """The derivative of ``node`` by ``name``, an expression as any other.

    ``where`` is differentiated branch by branch. Where a function has no derivative (abs at 0, min at a tie, rounding)
    the result is what torch's autograd gives.
    """
    return _tangent(node, name, number(1.0))


def chain(nodes: Sequence[Node], grads: Sequence[str], name: str) -> Node:
    """The gradient by ``name`` of outputs ``nodes`` whose own gradients are called ``grads``.

    It passes through a branch only where that is taken, so that an infinite gradient does not make the others NaN.
    """
    result = number(0.0)
    for node, grad in zip(nodes, grads, strict=True):
        part = _tangent(node, name, variable(grad))
        result = part if is_number(result, 0) else result if is_number(part, 0) else result + part
    return result


def _tangent(node: Node, name: str, seed: Node) -> Node:
    """The directional derivative of ``node`` where ``name`` moves by ``seed``."""
    zero = number(0.0)
    tangents: dict[Node, Node] = {}
    for x in postorder([node]):
        if isinstance(x, Apply):
            of_arguments = tuple(tangents[argument] for argument in x.arguments)
            constant = all(tangent is zero for tangent in of_arguments)
            tangents[x] = zero if constant else x.function.tangent(x, x.arguments, of_arguments)
        else:
            tangents[x] = seed if isinstance(x, Name) and x.name == name else zero
    return tangents[node]
