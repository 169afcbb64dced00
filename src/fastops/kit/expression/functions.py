"""The table of functions: one row has all that is known of a function."""

from __future__ import annotations

import math
from collections.abc import Callable

from .nodes import Apply, Function, Node, Number, Tangents, call
from .tangent import ZERO, Tangent, choose

FUNCTIONS: dict[str, Function] = {}

# Other names of the same: torch's, NumPy's and C's.
ALIASES = {
    "absolute": "abs",
    "fabs": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "clip": "clamp",
    "maximum": "max",
    "minimum": "min",
    "negative": "neg",
    "power": "pow",
    "remainder": "%",
    "rint": "round",
}

CONSTANTS = {"pi": math.pi, "e": math.e, "inf": math.inf, "nan": math.nan}

Rule = Callable[[Node, tuple[Node, ...], Tangents], Tangent]


def _row(
    name: str,
    arity: int,
    torch: str,
    c: str,
    tangent: Rule,
    *,
    truth: bool = False,
    conditions: tuple[int, ...] = (),
    short: str = "",
    careful: str = "",
    steps: bool = False,
) -> None:
    FUNCTIONS[name] = Function(name, arity, torch, c, tangent, truth, frozenset(conditions), short, careful, steps)


def _where(condition: Node, a: Node | float, b: Node | float) -> Node:
    return call("where", condition, a, b)


def _constant(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    return ZERO


def _unary(
    name: str,
    derivative: Callable[[Tangent, Node, Node], Tangent],
    torch: str | None = None,
    c: str | None = None,
    short: str = "",
    steps: bool = False,
) -> None:
    """Add a function of x. ``derivative(t, x, out)`` is t times its derivative. Its name is its spelling by default.

    A derivative that divides is written t / x, not t * (1 / x): 1 / x of a denormal x is infinite.
    """

    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        return derivative(tangents[0], arguments[0], out)

    _row(name, 1, torch or f"torch.{name}({{0}})", c or f"{name}{{f}}({{0}})", tangent, short=short, steps=steps)


def _binary(
    name: str,
    by_first: Callable[[Tangent, Node, Node, Node], Tangent],
    by_second: Callable[[Tangent, Node, Node, Node], Tangent],
    torch: str | None = None,
    c: str | None = None,
    steps: bool = False,
) -> None:
    """Add a function of a and b. ``by_first(t, a, b, out)`` is t times its derivative by a, ``by_second`` that by b."""

    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        (a, b), (ta, tb) = arguments, tangents
        return by_first(ta, a, b, out) + by_second(tb, a, b, out)

    _row(name, 2, torch or f"torch.{name}({{0}}, {{1}})", c or f"{name}{{f}}({{0}}, {{1}})", tangent, steps=steps)


def _step(name: str, torch: str | None = None, c: str | None = None) -> None:
    """A function of x that is constant nearly everywhere."""
    _row(name, 1, torch or f"torch.{name}({{0}})", c or f"{name}{{f}}({{0}})", _constant, steps=True)


def _truth(name: str, arity: int, torch: str, c: str, *, of_truths: bool = False) -> None:
    _row(name, arity, torch, c, _constant, truth=True, conditions=tuple(range(arity)) if of_truths else (), steps=True)


# Operators

_row("+", 2, "{0} + {1}", "{0} + {1}", lambda out, args, tangents: tangents[0] + tangents[1])
_row("-", 2, "{0} - {1}", "{0} - {1}", lambda out, args, tangents: tangents[0] - tangents[1])
_row("neg", 1, "-{0}", "-{0}", lambda out, args, tangents: -tangents[0])
_binary("*", lambda t, a, b, y: t * b, lambda t, a, b, y: t * a, "{0} * {1}", "{0} * {1}")


def _quotient_tangent(y: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    b, (ta, tb) = arguments[1], tangents
    return ta / b - tb * y / b  # b * b may overflow


_row(
    "/",
    2,
    "{0} / {1}",
    "{0} / {1}",
    _quotient_tangent,
    short="kit_ratio({0}, {1})",
    careful="kit_quotient({0}, {1})",
)
# Python's and torch's: the result has the sign of b. fmod's has the sign of a.
_binary(
    "%",
    lambda t, a, b, y: t,
    lambda t, a, b, y: -(t * call("round", (a - y) / b)),  # floor(a / b) may be one off where that is rounded
    "torch.remainder({0}, {1})",
    "kit_remainder(fmod{f}({0}, {1}), {1})",
    steps=True,
)

for _name in ("<", "<=", ">", ">=", "==", "!="):
    _truth(_name, 2, f"{{0}} {_name} {{1}}", f"{{0}} {_name} {{1}}")
_truth("and", 2, "{0} & {1}", "{0} & {1}", of_truths=True)
_truth("or", 2, "{0} | {1}", "{0} | {1}", of_truths=True)
_truth("not", 1, "~{0}", "!{0}", of_truths=True)


_row(
    "where",
    3,
    "torch.where({0}, {1}, {2})",
    "{0} ? {1} : {2}",
    lambda out, args, tangents: choose(args[0], tangents[1], tangents[2]),
    conditions=(0,),
)

# Exponentials and logarithms


def _exp_tangent(t: Tangent, x: Node, y: Node) -> Tangent:
    """Return t * e^x. If t was divided by c + e^x, as in a logistic function, t * (e^x / (c + e^x)).

    That quotient stays finite where e^x does not, and is written so that it keeps its digits near 0 and near 1.
    """
    d = t.divisor
    if d is y:
        return t.undivided()
    if not (isinstance(d, Apply) and d.function.name == "+" and y in d.arguments):
        return t * y
    c = d.arguments[1] if d.arguments[0] is y else d.arguments[0]
    if not isinstance(c, Number):
        return t.undivided() * (y / d)
    is_small = call("<", y, abs(c.value))
    return t.undivided() * (_where(is_small, y, -c) / d + _where(is_small, 0.0, 1.0))  # y / d, else 1 - c / d


_unary("exp", _exp_tangent, short="kit_exp({0})")
_unary("exp2", lambda t, x, y: t * y * math.log(2))
_unary("expm1", lambda t, x, y: t * call("exp", x))  # y + 1 loses its digits where y is near -1
_unary("log", lambda t, x, y: t / x, steps=True)
_unary("log2", lambda t, x, y: t / x / math.log(2), steps=True)  # x * log(2) of a denormal x would lose digits
_unary("log10", lambda t, x, y: t / x / math.log(10), steps=True)
_unary("log1p", lambda t, x, y: t / (x + 1), steps=True)
# e^-x may be inf, and 1 / inf is right.
_unary(
    "sigmoid",
    lambda t, x, y: t * (y * (1 - y)),
    c="1 / (1 + exp{f}(-{0}))",
    short="kit_ratio(1.0f, 1 + kit_exp(-{0}))",
)

# Powers and roots

_unary("sqrt", lambda t, x, y: t / (2 * y), steps=True)
_unary("rsqrt", lambda t, x, y: t * (-0.5 * y) * y * y, steps=True)


def _power_tangent(y: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    """Return the tangent of y = a^b. If b < 0, it has y / a for a^(b - 1), which may overflow where y does not."""
    (a, b), (ta, tb) = arguments, tangents
    if isinstance(b, Number):
        if b.value >= 0:
            return ta * call("pow", a, b - 1) * b if b.value else ZERO
        # -0 + 0 is 0: at a zero the power with a fraction in its exponent is positive.
        return ta * y * b / (a if b.value.is_integer() else a + 0.0)
    # Not where b is far below 0: there b - 1 may be rounded to b, and torch takes the sign of that power.
    divides = call("and", call("<", call("abs", b + 500), 500.0), call("!=", a, 0.0))
    by_base = ta * _where(divides, y, call("pow", a, b - 1)) * b / _where(divides, a, 1.0)
    at_zero = call("and", call("==", a, 0.0), call(">=", b, 0.0))
    return choose(call("==", b, 0.0), ZERO, by_base) + tb * y * _where(at_zero, 0.0, call("log", a))


_row("pow", 2, "torch.pow({0}, {1})", "pow{f}({0}, {1})", _power_tangent, steps=True)
_binary("hypot", lambda t, a, b, y: t * (a / y), lambda t, a, b, y: t * (b / y))

# Trigonometric and hyperbolic

_unary("sin", lambda t, x, y: t * call("cos", x))
_unary("cos", lambda t, x, y: -(t * call("sin", x)))
_unary("tan", lambda t, x, y: t * (1 + y * y))
_unary("asin", lambda t, x, y: t * call("rsqrt", 1 - x * x), steps=True)
_unary("acos", lambda t, x, y: -(t * call("rsqrt", 1 - x * x)), steps=True)


def _root(x: Node) -> Node:
    """Return sqrt(x² + 1), also where x² overflows."""
    return call("hypot", x, 1.0)


_unary("atan", lambda t, x, y: t / _root(x) / _root(x))


def _radius(a: Node, b: Node) -> Node:
    """Return the divisor sqrt(a² + b²); at the origin infinity, because torch's derivatives of atan2 are 0 there."""
    radius = call("hypot", b, a)
    return _where(call("==", radius, 0.0), math.inf, radius)


_binary(
    "atan2",
    lambda t, a, b, y: t * (b / _radius(a, b)) / _radius(a, b),
    lambda t, a, b, y: -(t * (a / _radius(a, b)) / _radius(a, b)),
    steps=True,
)
_unary("sinh", lambda t, x, y: t * call("cosh", x))
_unary("cosh", lambda t, x, y: t * call("sinh", x))
_unary("tanh", lambda t, x, y: t * (1 - y * y))
_unary("asinh", lambda t, x, y: t / _root(x))
# Two roots, because x² may overflow; of |x|, because torch's derivative is even.
_unary(
    "acosh",
    lambda t, x, y: t / (call("sqrt", call("abs", x) - 1) * call("sqrt", call("abs", x) + 1)),
    steps=True,
)
_unary("atanh", lambda t, x, y: t / (1 - x * x), steps=True)

# The normal distribution's

_unary("erf", lambda t, x, y: t * call("exp", -(x * x)) * (2 / math.sqrt(math.pi)))
_unary("erfc", lambda t, x, y: t * call("exp", -(x * x)) * (-2 / math.sqrt(math.pi)))

# Rounding, signs and parts

_step("floor")
_step("ceil")
_step("trunc")
_step("round", c="rint{f}({0})")  # halves to even, as torch's and Python's
_step("sign", c="kit_sign({0})")
_unary("abs", lambda t, x, y: t * call("sign", x), c="fabs{f}({0})")
_binary("fmod", lambda t, a, b, y: t, lambda t, a, b, y: -(t * call("trunc", a / b)), steps=True)


def _copysign_first(t: Tangent, a: Node, b: Node, y: Node) -> Tangent:
    """Return t * y / a, as torch has it: 0 at 0, NaN at infinity. Without a division its derivative is 0."""
    return t * _where(call("isfinite", a), call("sign", a) * call("copysign", 1.0, b), math.nan)


_binary("copysign", _copysign_first, lambda t, a, b, y: ZERO, steps=True)

# Choices. Where two arguments tie, min and max share the gradient, as torch's do. NaN goes through min, max, clamp and
# relu; fmin and fmax prefer the other argument.


def _extreme(beaten: str) -> Rule:
    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        (a, b), (ta, tb) = arguments, tangents
        share = _where(call("==", a, b), 0.5, 1.0)
        # Also where one of them is NaN.
        return choose(call(beaten, a, b), ZERO, ta * share) + choose(call(beaten, b, a), ZERO, tb * share)

    return tangent


_row("min", 2, "torch.minimum({0}, {1})", "{0} != {0} ? {0} : {0} < {1} ? {0} : {1}", _extreme(">"))
_row("max", 2, "torch.maximum({0}, {1})", "{0} != {0} ? {0} : {0} > {1} ? {0} : {1}", _extreme("<"))


def _first_if(comparison: str) -> Rule:
    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        a, b = arguments
        return choose(call("or", call(comparison, a, b), call("isnan", b)), *tangents)

    return tangent


_row("fmin", 2, "torch.fmin({0}, {1})", "fmin{f}({0}, {1})", _first_if("<="))
_row("fmax", 2, "torch.fmax({0}, {1})", "fmax{f}({0}, {1})", _first_if(">="))


def _clamp_tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    x, low, high = arguments
    crossed = call("<", high, low)  # then the result is `high`
    inside = call("and", call(">=", x, low), call("<=", x, high))
    below = call("and", call("<", x, low), call("<", low, high))
    above = call("or", call(">", x, high), crossed)
    of_x, of_low, of_high = tangents
    return choose(inside, of_x, choose(below, of_low, choose(above, of_high, ZERO)))


_row("clamp", 3, "torch.clamp({0}, {1}, {2})", "kit_clamp({0}, {1}, {2})", _clamp_tangent)
_row(
    "relu",
    1,
    "torch.relu({0})",
    "{0} <= 0 ? 0 : {0}",
    lambda out, args, tangents: choose(call("<=", args[0], 0.0), ZERO, tangents[0]),
)

# Questions

_truth("isnan", 1, "torch.isnan({0})", "{0} != {0}")
_truth("isinf", 1, "torch.isinf({0})", "fabs{f}({0}) == KIT_INF")
_truth("isfinite", 1, "torch.isfinite({0})", "fabs{f}({0}) < KIT_INF")
