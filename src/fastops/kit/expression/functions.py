"""The table of functions: one row has all that is known of a function."""

from __future__ import annotations

import math
from collections.abc import Callable

from .nodes import Apply, Function, Node, Number, Tangents, call, number
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
    derivative: Callable[[Node, Node], Node | float],
    torch: str | None = None,
    c: str | None = None,
    short: str = "",
    steps: bool = False,
) -> None:
    """A function of x with ``derivative(x, out)``; spelled as its name says unless told otherwise."""

    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        return tangents[0] * derivative(arguments[0], out)

    _row(name, 1, torch or f"torch.{name}({{0}})", c or f"{name}{{f}}({{0}})", tangent, short=short, steps=steps)


def _binary(
    name: str,
    by_first: Callable[[Node, Node, Node], Node | float],
    by_second: Callable[[Node, Node, Node], Node | float],
    torch: str | None = None,
    c: str | None = None,
    steps: bool = False,
) -> None:
    """A function of two numbers a, b with its partial derivatives, both given (a, b, out)."""

    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        (a, b), (ta, tb) = arguments, tangents
        return ta * by_first(a, b, out) + tb * by_second(a, b, out)

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
_binary("*", lambda a, b, y: b, lambda a, b, y: a, "{0} * {1}", "{0} * {1}")


def _quotient_tangent(y: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    b, (ta, tb) = arguments[1], tangents
    logistic = _logistic(b, tb.value)
    if logistic:
        # e^z / (c + e^z) is 1 - c / (c + e^z), which stays finite where e^z does not.
        c, tz = logistic
        return ta / b - Tangent(tz, tb.mask, tb.mask is None) * (1 - c / b) * y
    return (ta - tb * y) / b


def _logistic(b: Node, tb: Node) -> tuple[Node, Node] | None:
    """c and z's tangent of ``b`` = c + e^z, whose tangent is ``tb`` = z's tangent * e^z, if c is a number."""
    if isinstance(b, Apply) and b.function.name == "+":
        c, power = b.arguments if isinstance(b.arguments[0], Number) else b.arguments[::-1]
        if isinstance(c, Number) and isinstance(power, Apply) and power.function.name == "exp":
            if tb is power:
                return c, number(1.0)
            if isinstance(tb, Apply) and tb.function.name == "*" and tb.arguments[1] is power:
                return c, tb.arguments[0]
    return None


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
    lambda a, b, y: 1.0,
    lambda a, b, y: -call("round", (a - y) / b),  # floor(a / b) may be one off where that is rounded
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

_unary("exp", lambda x, y: y, short="kit_exp({0})")
_unary("exp2", lambda x, y: y * math.log(2))
_unary("expm1", lambda x, y: y + 1)
_unary("log", lambda x, y: 1 / x, steps=True)
_unary("log2", lambda x, y: 1 / (x * math.log(2)), steps=True)
_unary("log10", lambda x, y: 1 / (x * math.log(10)), steps=True)
_unary("log1p", lambda x, y: 1 / (x + 1), steps=True)
# e^-x may be inf, and 1 / inf is right.
_unary("sigmoid", lambda x, y: y * (1 - y), c="1 / (1 + exp{f}(-{0}))", short="kit_ratio(1.0f, 1 + kit_exp(-{0}))")

# Powers and roots

_unary("sqrt", lambda x, y: 0.5 / y, steps=True)
_unary("rsqrt", lambda x, y: -0.5 * y * y * y, steps=True)


def _power_tangent(y: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
    (a, b), (ta, tb) = arguments, tangents
    by_base = ta * (b * call("pow", a, b - 1))
    if isinstance(b, Number):
        return by_base if b.value else ZERO
    at_zero = call("and", call("==", a, 0.0), call(">=", b, 0.0))
    return choose(call("==", b, 0.0), ZERO, by_base) + tb * _where(at_zero, 0.0, y * call("log", a))


_row("pow", 2, "torch.pow({0}, {1})", "pow{f}({0}, {1})", _power_tangent, steps=True)
_binary("hypot", lambda a, b, y: a / y, lambda a, b, y: b / y)

# Trigonometric and hyperbolic

_unary("sin", lambda x, y: call("cos", x))
_unary("cos", lambda x, y: -call("sin", x))
_unary("tan", lambda x, y: 1 + y * y)
_unary("asin", lambda x, y: call("rsqrt", 1 - x * x), steps=True)
_unary("acos", lambda x, y: -call("rsqrt", 1 - x * x), steps=True)
_unary("atan", lambda x, y: 1 / (x * x + 1))


def _over_square(x: Node, a: Node, b: Node) -> Node:
    square = a * a + b * b
    return _where(call("==", square, 0.0), 0.0, x / square)


_binary("atan2", lambda a, b, y: _over_square(b, a, b), lambda a, b, y: _over_square(-a, a, b), steps=True)
_unary("sinh", lambda x, y: call("cosh", x))
_unary("cosh", lambda x, y: call("sinh", x))
_unary("tanh", lambda x, y: 1 - y * y)
_unary("asinh", lambda x, y: call("rsqrt", x * x + 1))
_unary("acosh", lambda x, y: call("rsqrt", x * x - 1), steps=True)
_unary("atanh", lambda x, y: 1 / (1 - x * x), steps=True)

# The normal distribution's

_unary("erf", lambda x, y: 2 / math.sqrt(math.pi) * call("exp", -(x * x)))
_unary("erfc", lambda x, y: -2 / math.sqrt(math.pi) * call("exp", -(x * x)))

# Rounding, signs and parts

_step("floor")
_step("ceil")
_step("trunc")
_step("round", c="rint{f}({0})")  # halves to even, as torch's and Python's
_step("sign", c="kit_sign({0})")
_unary("abs", lambda x, y: call("sign", x), c="fabs{f}({0})")
_binary("fmod", lambda a, b, y: 1.0, lambda a, b, y: -call("trunc", a / b), steps=True)
_binary("copysign", lambda a, b, y: _where(call("==", a, 0.0), 0.0, y / a), lambda a, b, y: 0.0, steps=True)

# Choices. Where two arguments tie, min and max share the gradient, as torch's do. NaN goes through min, max, clamp and
# relu; fmin and fmax prefer the other argument.


def _extreme(beaten: str) -> Rule:
    def tangent(out: Node, arguments: tuple[Node, ...], tangents: Tangents) -> Tangent:
        (a, b), (ta, tb) = arguments, tangents
        share = _where(call("==", a, b), 0.5, 1.0)
        both = ta * share + tb * share  # also where one of them is NaN
        if tb.zero:
            return choose(call(beaten, a, b), ZERO, both)
        if ta.zero:
            return choose(call(beaten, b, a), ZERO, both)
        return choose(call(beaten, a, b), tb, choose(call(beaten, b, a), ta, both))

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
