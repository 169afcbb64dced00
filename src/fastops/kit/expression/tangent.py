"""Tangents: how much a result moves with a node, and where a choice keeps it still.

What a choice makes 0 stays 0: around it may be a function of infinite derivative, and 0 times infinity is NaN. So a
choice between a tangent and 0 makes no value but a condition, which is applied to the product with all that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .nodes import Apply, Node, Number, as_real, call, is_number, number

_ZERO_NODE = number(0.0)


@dataclass(frozen=True, eq=False)
class Tangent:
    """Value ``value / divisor`` where all conditions hold, else 0.

    Attributes:
        value: a number that is 0 is one of a constant: the product with it is 0 whatever the other factor is.
        conditions: truth values, or numbers that are not 0 where they hold; that of the outer choice comes first.
        applied: whether the quotient is 0 already where a condition does not hold.
        divisor: the last divisor, which the derivative of ``exp`` may cancel. None is 1.
    """

    value: Node
    conditions: tuple[Node, ...] = ()
    applied: bool = True
    divisor: Node | None = None

    @property
    def zero(self) -> bool:
        return is_number(self.value, 0)

    @property
    def quotient(self) -> Node:
        return self.value if self.divisor is None else self.value / self.divisor

    def node(self) -> Node:
        return self.quotient if self.applied else _chosen(self.conditions, self.quotient)

    def undivided(self) -> Tangent:
        """Return the numerator."""
        return replace(self, applied=not self.conditions, divisor=None)

    def only(self, condition: Node) -> Tangent:
        """Return the same with one more condition: chosen by it, never multiplied by 0."""
        if self.zero or condition in self.conditions:
            return self
        return replace(self, conditions=(*self.conditions, condition), applied=False)

    def __neg__(self) -> Tangent:
        return self if self.zero else replace(self, value=-self.value)

    def __mul__(self, factor: Node | float) -> Tangent:
        return self if self.zero else self._scaled(self.quotient * factor, factor)

    def __truediv__(self, divisor: Node | float) -> Tangent:
        divisor = divisor if isinstance(divisor, Node) else number(divisor)
        return self if self.zero else self._scaled(self.quotient, divisor, divisor)

    def _scaled(self, value: Node, by: Node | float, divisor: Node | None = None) -> Tangent:
        # Ordinary numbers leave a 0; whatever else there is may be infinite.
        number = by.value if isinstance(by, Number) else by
        ordinary = isinstance(number, float) and 1e-30 < abs(number) < 1e30
        return Tangent(value, self.conditions, self.applied and (ordinary or not self.conditions), divisor)

    def __add__(self, other: Tangent) -> Tangent:
        if self.zero or other.zero:
            return other if self.zero else self
        if self.conditions != other.conditions:
            conditions = _either(self.conditions, other.conditions)
            if self.divisor is not other.divisor or self.divisor is None:
                return Tangent(self.node() + other.node(), conditions)
            value = _chosen(self.conditions, self.value) + _chosen(other.conditions, other.value)
            return Tangent(value, conditions, not conditions, self.divisor)
        applied = self.applied and other.applied
        if self.divisor is other.divisor:
            return Tangent(self.value + other.value, self.conditions, applied, self.divisor)
        return Tangent(self.quotient + other.quotient, self.conditions, applied)

    def __sub__(self, other: Tangent) -> Tangent:
        return self + -other


ZERO = Tangent(_ZERO_NODE)


def choose(condition: Node, yes: Tangent, no: Tangent) -> Tangent:
    """Return ``yes`` where ``condition`` holds, else ``no``."""
    return yes.only(condition) + no.only(call("not", condition))


def total(tangents: Iterable[Tangent]) -> Tangent:
    """Return the sum. Two branches of a choice become one select, the innermost choices first."""
    sums: dict[tuple[Node, ...], Tangent] = {}
    for tangent in tangents:
        sums[tangent.conditions] = sums.get(tangent.conditions, ZERO) + tangent
    for depth in range(max(map(len, sums), default=0), 0, -1):
        for conditions in [x for x in sums if len(x) == depth]:
            *outer, condition = conditions
            other = (*outer, call("not", condition))
            if conditions not in sums or other not in sums:
                continue
            if isinstance(condition, Apply) and condition.function.name == "not":
                conditions, other = other, conditions
            joined = _joined(conditions[-1], sums.pop(conditions), sums.pop(other), tuple(outer))
            sums[joined.conditions] = sums.get(joined.conditions, ZERO) + joined
    result = ZERO
    for tangent in sums.values():
        result += tangent
    return result


def _joined(condition: Node, yes: Tangent, no: Tangent, outer: tuple[Node, ...]) -> Tangent:
    applied = not outer or (yes.applied and no.applied)
    if yes.divisor is no.divisor:
        return Tangent(call("where", condition, yes.value, no.value), outer, applied, yes.divisor)
    return Tangent(call("where", condition, yes.quotient, no.quotient), outer, applied)


# Selects of numbers: GCC takes minutes to simplify a chain of 40 truth values that are combined by & and |.


def _chosen(conditions: tuple[Node, ...], value: Node) -> Node:
    """Return ``value`` where all conditions hold, else 0."""
    if not conditions:
        return value
    return call("where", _all(conditions), value, 0.0)


def _all(conditions: tuple[Node, ...]) -> Node:
    mask, *rest = conditions
    for condition in rest:
        mask = call("where", condition, as_real(mask), 0.0)
    return mask


def _either(a: tuple[Node, ...], b: tuple[Node, ...]) -> tuple[Node, ...]:
    """Return conditions that hold where all of ``a`` or all of ``b`` hold."""
    shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], zip(a, b, strict=False)))
    rest_a, rest_b = a[shared:], b[shared:]
    if not (rest_a and rest_b):
        return a[:shared]
    return (*a[:shared], call("where", _all(rest_a), 1.0, as_real(_all(rest_b))))
