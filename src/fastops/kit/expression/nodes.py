"""Nodes: an expression as a graph whose equal parts are one object.

Equal nodes are the same object, so a part that occurs twice is computed once and nodes are compared by identity.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from .tangent import Tangent

Tangents = tuple["Tangent", ...]


@dataclass(frozen=True, eq=False)
class Function:
    """One row of the table in ``functions.py``.

    Attributes:
        name: the name in an expression.
        arity: how many arguments it takes.
        torch, c: the spelling in each language, with ``{0}`` for the first argument; in C also ``{f}`` for the ``f``
            that ends the names of the C library's functions of floats.
        short: the spelling in CUDA where the result is rounded to a half type; the usual one if empty.
        careful: the same where a step may lie behind the value, as a comparison or ``sqrt``'s edge; ``short`` if empty.
        tangent: ``tangent(out, arguments, tangents)``, the directional derivative of ``out``, linear in the tangents.
        truth: whether the result is a truth value.
        conditions: the arguments that are truth values.
        steps: whether a small change of an argument may change the value by much, or make it NaN.
    """

    name: str
    arity: int
    torch: str
    c: str
    tangent: Callable[[Node, tuple[Node, ...], Tangents], Tangent]
    truth: bool = False
    conditions: frozenset[int] = frozenset()
    short: str = ""
    careful: str = ""
    steps: bool = False


class Node:
    """A number, a name or a function of nodes. The operators build nodes and evaluate what is constant."""

    __slots__ = ("__weakref__",)

    @property
    def truth(self) -> bool:
        """Whether its value is true or false rather than a number."""
        return False

    def __neg__(self) -> Node:
        return call("neg", self)

    def __add__(self, other: Node | float) -> Node:
        return call("+", self, other)

    def __radd__(self, other: float) -> Node:
        return call("+", other, self)

    def __sub__(self, other: Node | float) -> Node:
        return call("-", self, other)

    def __rsub__(self, other: float) -> Node:
        return call("-", other, self)

    def __mul__(self, other: Node | float) -> Node:
        return call("*", self, other)

    def __rmul__(self, other: float) -> Node:
        return call("*", other, self)

    def __truediv__(self, other: Node | float) -> Node:
        return call("/", self, other)

    def __rtruediv__(self, other: float) -> Node:
        return call("/", other, self)


class Number(Node):
    __slots__ = ("value",)
    value: float

    def __repr__(self) -> str:
        return repr(self.value)


class Name(Node):
    __slots__ = ("name",)
    name: str

    def __repr__(self) -> str:
        return self.name


class Apply(Node):
    __slots__ = ("arguments", "function")
    function: Function
    arguments: tuple[Node, ...]

    @property
    def truth(self) -> bool:
        return self.function.truth

    def __repr__(self) -> str:
        return f"<{self.function.name} of {len(self.arguments)}>"


_numbers: WeakValueDictionary[bytes, Number] = WeakValueDictionary()
_names: WeakValueDictionary[str, Name] = WeakValueDictionary()
_applied: WeakValueDictionary[tuple[Function, tuple[Node, ...]], Apply] = WeakValueDictionary()


def number(value: float) -> Node:
    key = struct.pack("d", value)  # tells 0 from -0, and NaN is itself
    node = _numbers.get(key)
    if node is None:
        node = Number()
        node.value = float(value)
        node = _numbers.setdefault(key, node)
    return node


def name(text: str) -> Node:
    node = _names.get(text)
    if node is None:
        node = Name()
        node.name = text
        node = _names.setdefault(text, node)
    return node


def apply(function: Function, arguments: tuple[Node, ...]) -> Apply:
    """The node as it stands; :func:`call` also converts and simplifies."""
    key = (function, arguments)
    node = _applied.get(key)
    if node is None:
        node = Apply()
        node.function, node.arguments = function, arguments
        node = _applied.setdefault(key, node)
    return node


def call(function: str, *arguments: Node | float) -> Node:
    """``function`` of the table, of as many arguments as it takes. Simplified where not a bit of a result changes."""
    from .functions import FUNCTIONS  # which builds derivatives out of nodes

    row = FUNCTIONS[function]
    nodes = [x if isinstance(x, Node) else number(x) for x in arguments]
    nodes = [_as_truth(x) if k in row.conditions else as_real(x) for k, x in enumerate(nodes)]
    return _simplified(row.name, nodes) or apply(row, tuple(nodes))


def as_real(node: Node) -> Node:
    """A truth value as 1 or 0."""
    return call("where", node, 1.0, 0.0) if node.truth else node


def _as_truth(node: Node) -> Node:
    return node if node.truth else call("!=", node, 0.0)


def is_number(node: Node, value: float) -> bool:
    return isinstance(node, Number) and node.value == value


_FOLDED: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def _simplified(function: str, nodes: list[Node]) -> Node | None:
    """Something equal and simpler, for every value an argument may have; None where there is nothing."""
    if function == "neg":
        (x,) = nodes
        if isinstance(x, Number):
            return number(-x.value)
        if isinstance(x, Apply) and x.function.name == "neg":
            return x.arguments[0]
    elif function == "where" and nodes[1] is nodes[2]:
        return nodes[1]
    elif function == "not":
        (x,) = nodes
        return x.arguments[0] if isinstance(x, Apply) and x.function.name == "not" else None
    elif function in ("and", "or"):
        for x, whole in (nodes, nodes[::-1]):
            if x is whole or (isinstance(whole, Apply) and whole.function.name == function and x in whole.arguments):
                return whole
    elif function in _FOLDED:
        a, b = nodes
        if isinstance(a, Number) and isinstance(b, Number) and not (function == "/" and b.value == 0):
            return number(_FOLDED[function](a.value, b.value))
        if function in "*/" and is_number(b, 1):
            return a
        if function == "/" and isinstance(b, Number) and _inverts(b.value):
            return a * (1 / b.value)
        if function == "*" and is_number(a, 1):
            return b
        if function == "-" and b is number(0.0):
            return a
    elif function == "pow" and isinstance(nodes[1], Number):
        x, power = nodes[0], nodes[1].value
        if power == 1:
            return x
        if power == 2:
            return x * x
        if power == 3:
            return x * x * x
    return None


def _inverts(value: float) -> bool:
    """Whether it is a power of two whose inverse is one in each dtype that is computed in."""
    return math.frexp(abs(value))[0] == 0.5 and 2.0**-126 <= abs(value) <= 2.0**126


def postorder(roots: Iterable[Node]) -> list[Node]:
    """Every node once, arguments before what is made of them. No recursion: expressions may be deep."""
    done: dict[Node, None] = {}
    stack = [(root, False) for root in reversed(tuple(roots))]
    while stack:
        node, seen = stack.pop()
        if node in done:
            continue
        if seen or not isinstance(node, Apply):
            done[node] = None
        else:
            stack.append((node, True))
            stack.extend((argument, False) for argument in reversed(node.arguments))
    return list(done)


def before_steps(roots: Iterable[Node]) -> set[Node]:
    """The nodes whose value goes into a function with steps, through whatever functions."""
    found: set[Node] = set()
    for node in reversed(postorder(roots)):
        if isinstance(node, Apply) and (node.function.steps or node in found):
            found.update(node.arguments)
    return found


def names(node: Node) -> frozenset[str]:
    """The names that an expression reads."""
    return frozenset(x.name for x in postorder([node]) if isinstance(x, Name))
