"""Derivatives of expressions as nodes, by the chain rule from the outputs inwards."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence

from .nodes import Apply, Name, Node, call, number, postorder
from .nodes import name as variable
from .tangent import ZERO, Tangent, total


def derivative(node: Node, name: str) -> Node:
    """The derivative of ``node`` by ``name``, an expression as any other.

    ``where`` is differentiated branch by branch, and what a choice makes 0 stays 0. Where a function has no derivative
    (abs at 0, min at a tie, rounding) the result is what torch's autograd gives.
    """
    return _derivative_of_sum([(node, number(1.0))], name).node()


def chain(
    nodes: Sequence[Node], grads: Sequence[str], name: str, came: Iterable[bool] = itertools.repeat(True)
) -> Node:
    """The gradient by ``name`` of outputs ``nodes`` whose own gradients are called ``grads``, of those that ``came``.

    It passes through a branch only where that is taken, so that an infinite gradient does not make the others NaN.
    """
    pairs = itertools.compress(zip(nodes, grads, strict=True), came)
    return _derivative_of_sum([(node, variable(grad)) for node, grad in pairs], name).node()


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


def _derivative_of_sum(outputs: Sequence[tuple[Node, Node]], name: str) -> Tangent:
    """Return the derivative by ``name`` of the sum of all outputs, pairs of a node and a factor.

    It goes from the outputs inwards, as autograd does: in ``p * log(p)`` the outer derivative is p, which is multiplied
    before the inner one divides by p. The other way 1 / p of a denormal p would be infinite.
    """
    order = postorder(node for node, _ in outputs)
    reading = {variable(name)}  # the nodes that read the name
    reading.update(x for x in order if isinstance(x, Apply) and not reading.isdisjoint(x.arguments))
    parts: dict[Node, list[Tangent]] = defaultdict(list)
    for node, factor in outputs:
        parts[node].append(Tangent(factor))
    for x in reversed(order):
        if x not in reading or x not in parts:
            continue
        whole = total(parts.pop(x))
        if not isinstance(x, Apply):
            return whole
        for k, argument in enumerate(x.arguments):
            if argument in reading:
                tangents = tuple(whole if j == k else ZERO for j in range(len(x.arguments)))
                parts[argument].append(x.function.tangent(x, x.arguments, tangents))
    return ZERO
