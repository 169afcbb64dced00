"""Tangents: how much a node moves, and where a choice keeps it still.

What a choice makes 0 stays 0: around it may be a function of infinite derivative, and 0 times infinity is NaN. So a
choice between a tangent and 0 makes no value but a mask, which is applied to the product with all that follows.
"""

from __future__ import annotations

from dataclasses import dataclass

from .nodes import Apply, Node, Number, as_real, call, is_number, number

_ZERO_NODE = number(0.0)


@dataclass(frozen=True, eq=False)
class Tangent:
    """``value`` where ``mask`` holds, else 0.

    Attributes:
        value: a number that is 0 is one of a constant: the product with it is 0 whatever the other factor is.
        mask: a truth value, or a number that is not 0 where it holds; None holds everywhere.
        applied: whether ``value`` is 0 already where the mask does not hold.
    """

    value: Node
    mask: Node | None = None
    applied: bool = True

    @property
    def zero(self) -> bool:
        return is_number(self.value, 0)

    def node(self) -> Node:
        return self.value if self.mask is None or self.applied else call("where", self.mask, self.value, 0.0)

    def __neg__(self) -> Tangent:
        return self if self.zero else Tangent(-self.value, self.mask, self.applied)

    def __mul__(self, factor: Node | float) -> Tangent:
        return self if self.zero else self._scaled(self.value * factor, factor)

    def __truediv__(self, divisor: Node) -> Tangent:
        return self if self.zero else self._scaled(self.value / divisor, divisor)

    def _scaled(self, value: Node, by: Node | float) -> Tangent:
        # Ordinary numbers leave a 0; whatever else there is may be infinite.
        number = by.value if isinstance(by, Number) else by
        ordinary = isinstance(number, float) and 1e-30 < abs(number) < 1e30
        return Tangent(value, self.mask, self.applied and (ordinary or self.mask is None))

    def __add__(self, other: Tangent) -> Tangent:
        if self.zero or other.zero:
            return other if self.zero else self
        if self.mask is other.mask:
            return Tangent(self.value + other.value, self.mask, self.applied and other.applied)
        return Tangent(self.node() + other.node(), _or(self.mask, other.mask))

    def __sub__(self, other: Tangent) -> Tangent:
        if self.zero or other.zero:
            return -other if self.zero else self
        if self.mask is other.mask:
            return Tangent(self.value - other.value, self.mask, self.applied and other.applied)
        return Tangent(self.node() - other.node(), _or(self.mask, other.mask))


ZERO = Tangent(_ZERO_NODE)


def choose(condition: Node, yes: Tangent, no: Tangent) -> Tangent:
    """``yes`` where ``condition`` holds, else ``no``: chosen, never multiplied by 0."""
    if no.zero:
        return ZERO if yes.zero else Tangent(yes.value, _and(condition, yes.mask), False)
    if yes.zero:
        return Tangent(no.value, _and(call("not", condition), no.mask), False)
    if yes.mask is no.mask:
        return Tangent(call("where", condition, yes.value, no.value), yes.mask, yes.applied and no.applied)
    mask = _or(_and(condition, yes.mask), _and(call("not", condition), no.mask))
    if yes.mask is None or no.mask is None:
        mask = _or(condition, no.mask) if yes.mask is None else _or(call("not", condition), yes.mask)
    return Tangent(call("where", condition, yes.node(), no.node()), mask)


# Selects of numbers: GCC takes minutes to simplify a chain of 40 truth values that are combined by & and |.


def _and(a: Node, b: Node | None) -> Node:
    if b is None or a is b:
        return a
    if isinstance(b, Apply) and b.function.name == "where" and b.arguments[0] is a:
        return b
    return call("where", a, as_real(b), 0.0)


def _or(a: Node | None, b: Node | None) -> Node | None:
    if a is None or b is None or a is b:
        return None if a is None or b is None else a
    return call("where", a, 1.0, as_real(b))
