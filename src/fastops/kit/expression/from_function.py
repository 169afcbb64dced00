"""A Python function of numbers to nodes, by its source: it is read, never run."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import sys
import textwrap
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ..errors import ExpressionError
from ..number import real
from ..outside import bound
from .nodes import Node, as_real, call, name, number
from .parse import call_by_name, is_random, unknown_function
from .place import at_place
from .signature import Signature, name_error

# Whose functions of a name are the table's of that name.
_MODULES = ("builtins", "math", "torch", "torch.nn.functional", "numpy")

_MAX_STATEMENTS = 1000

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "pow",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "and",
    ast.Or: "or",
    ast.USub: "neg",
    ast.Not: "not",
}


def from_function(function: Callable[..., Any]) -> tuple[Signature, tuple[Node, ...]]:
    """The signature of a Python function, and a node for each value that it returns.

    Parameters are tensors; those behind ``*`` or with a default are scalars. The body may hold assignments, ``if``,
    conditional expressions, and calls of ``math``, ``torch``, ``numpy`` and builtin functions that the table has;
    numbers from outside are taken as they are now.

    Raises:
        ExpressionError: with the line of the function, where it holds anything else.
    """
    function = getattr(function, "py_func", function)  # what Numba compiled
    op = getattr(function, "__name__", "kit")
    try:
        source = textwrap.dedent(inspect.getsource(function))
        plain: Any = getattr(function, "__func__", function)  # of a method
        outside = ChainMap(bound(plain), plain.__globals__, vars(builtins))
    except (AttributeError, OSError, TypeError) as error:
        raise ExpressionError(f"[{op}] the source of {function!r} cannot be read: {error}") from None
    try:
        definitions = [x for x in ast.walk(ast.parse(source)) if isinstance(x, (ast.FunctionDef, ast.Lambda))]
    except SyntaxError:  # a lambda on a line that is part of a statement
        definitions = []
    wanted = ast.Lambda if op == "<lambda>" else ast.FunctionDef
    found = [x for x in definitions if isinstance(x, wanted)]
    if not found or (op == "<lambda>" and len(found) > 1):
        raise ExpressionError(f"[{op}] no function can be read from this source; write it as text or by def:\n{source}")
    op = "kit" if op == "<lambda>" else op
    defaults = {p.name: p.default for p in inspect.signature(function).parameters.values()}
    reader = _Reader(op, source, outside, defaults)
    try:
        return reader.function(found[0])
    except RecursionError:
        raise ExpressionError(f"[{op}] an expression of the function is nested too deep") from None


class _Reader:
    def __init__(self, op: str, source: str, outside: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self.op = op
        self.source = source
        self.outside = outside
        self.defaults = defaults
        self.statements = 0

    def error(self, message: str, node: ast.AST) -> ExpressionError:
        lines = self.source.splitlines(keepends=True)
        row, column = getattr(node, "lineno", 1) - 1, getattr(node, "col_offset", 0)
        column = len(lines[row].encode()[:column].decode(errors="ignore"))
        return ExpressionError(at_place(self.op, message, self.source, sum(map(len, lines[:row])) + column))

    def function(self, definition: ast.FunctionDef | ast.Lambda) -> tuple[Signature, tuple[Node, ...]]:
        signature = self.signature(definition)
        values = {x: name(x) for x in (*signature.tensors, *signature.scalars)}
        if isinstance(definition, ast.Lambda):
            return signature, self.returned(definition.body, values)
        nodes = self.block(definition.body, values)
        if nodes is None:
            raise self.error("the function must return a value on every way through it", definition)
        return signature, nodes

    def signature(self, definition: ast.FunctionDef | ast.Lambda) -> Signature:
        arguments = definition.args
        if arguments.vararg or arguments.kwarg:
            raise self.error("*args and **kwargs have no place in an expression", definition)
        tensors: list[str] = []
        scalars: dict[str, float] = {}
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
        keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        for argument, default in (*zip(positional, defaults, strict=True), *keyword_only):
            error = name_error(argument.arg)
            if error:
                raise self.error(error, argument)
            if default is None:
                if argument in arguments.kwonlyargs:
                    raise self.error(f"the scalar {argument.arg!r} needs a default: {argument.arg}=1.0", argument)
                tensors.append(argument.arg)
            else:
                scalars[argument.arg] = self.default(argument.arg, default)
        if not tensors:
            raise self.error("expected at least one argument without a default: a tensor", definition)
        return Signature(self.op, tuple(tensors), scalars)

    def default(self, name: str, place: ast.expr) -> float:
        try:
            return float(real(self.defaults[name]))
        except (TypeError, OverflowError):
            raise self.error("the default must be a number", place) from None

    def block(self, body: list[ast.stmt], values: dict[str, Node]) -> tuple[Node, ...] | None:
        """What these statements return, None if they return nothing; ``values`` gets what they assign."""
        for k, statement in enumerate(body):
            self.statements += 1
            if self.statements > _MAX_STATEMENTS:
                raise self.error(f"more than {_MAX_STATEMENTS} statements on all ways through the function", statement)
            if isinstance(statement, ast.Return):
                return self.returned(statement.value, values)
            if isinstance(statement, ast.If):
                # Each way goes on to the end by itself; what is the same on both is the same node.
                rest = body[k + 1 :]
                condition = self.expression(statement.test, values)
                ways = [self.block([*way, *rest], dict(values)) for way in (statement.body, statement.orelse)]
                return self.joined(condition, ways, statement)
            self.assignment(statement, values)
        return None

    def joined(
        self, condition: Node, ways: list[tuple[Node, ...] | None], statement: ast.stmt
    ) -> tuple[Node, ...] | None:
        yes, no = ways
        if yes is None or no is None:
            if yes is no:
                return None
            raise self.error("the function must return a value on every way through it", statement)
        if len(yes) != len(no):
            raise self.error(f"returns {len(yes)} values on one way and {len(no)} on the other", statement)
        return tuple(call("where", condition, a, b) for a, b in zip(yes, no, strict=True))

    def assignment(self, statement: ast.stmt, values: dict[str, Node]) -> None:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return  # a docstring
        if isinstance(statement, ast.Pass):
            return
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target: ast.expr = statement.targets[0]
        elif isinstance(statement, (ast.AnnAssign, ast.AugAssign)) and statement.value:
            target = statement.target
        else:
            raise self.error(f"{type(statement).__name__} cannot be made an expression", statement)
        if not isinstance(target, ast.Name) or statement.value is None:
            raise self.error("only a name can be assigned to", target)
        value = self.expression(statement.value, values)
        if isinstance(statement, ast.AugAssign):
            value = call(self.operator(statement.op, statement), self.expression(target, values), value)
        values[target.id] = value

    def returned(self, value: ast.expr | None, values: dict[str, Node]) -> tuple[Node, ...]:
        if value is None:
            return ()
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        return tuple(as_real(self.expression(part, values)) for part in parts)

    def expression(self, x: ast.expr, values: dict[str, Node]) -> Node:
        if isinstance(x, ast.Name) and x.id in values:
            return values[x.id]
        if isinstance(x, (ast.Name, ast.Attribute, ast.Constant)):
            outside = x.value if isinstance(x, ast.Constant) else self.resolved(x, values)
            try:
                return number(float(real(outside)))
            except (TypeError, OverflowError):
                raise self.error(f"expected a number, got {outside!r}", x) from None
        if isinstance(x, ast.BinOp):
            operator = self.operator(x.op, x)
            return call(operator, self.expression(x.left, values), self.expression(x.right, values))
        if isinstance(x, ast.UnaryOp):
            operand = self.expression(x.operand, values)
            return as_real(operand) if isinstance(x.op, ast.UAdd) else call(self.operator(x.op, x), operand)
        if isinstance(x, ast.BoolOp):
            parts = [self.expression(part, values) for part in x.values]
            return functools.reduce(functools.partial(_either, self.operator(x.op, x)), parts)
        if isinstance(x, ast.Compare):
            parts = [self.expression(part, values) for part in (x.left, *x.comparators)]
            pairs = zip(x.ops, parts, parts[1:], strict=False)
            return functools.reduce(
                functools.partial(call, "and"), [call(self.operator(op, x), a, b) for op, a, b in pairs]
            )
        if isinstance(x, ast.IfExp):
            return call("where", *(self.expression(part, values) for part in (x.test, x.body, x.orelse)))
        if isinstance(x, ast.Call):
            return self.called(x, values)
        raise self.error(f"{type(x).__name__} cannot be made an expression", x)

    def operator(self, operator: ast.AST, place: ast.AST) -> str:
        if type(operator) not in _OPERATORS:
            raise self.error(f"the operator {type(operator).__name__} is not one of expressions", place)
        return _OPERATORS[type(operator)]

    def called(self, x: ast.Call, values: dict[str, Node]) -> Node:
        if x.keywords:
            raise self.error("arguments of functions are given by position", x)
        arguments = [self.expression(argument, values) for argument in x.args]
        function = self.resolved(x.func, values)
        if function is float and len(arguments) == 1:
            return as_real(arguments[0])
        if function is math.remainder:  # torch's and NumPy's of that name are Python's %
            raise self.error("math.remainder rounds to the nearest: expected %, or x - y * round(x / y)", x)
        called = getattr(function, "__name__", "")
        if not any(getattr(sys.modules.get(module), called, None) is function for module in _MODULES):
            if is_random(called):
                raise self.error(unknown_function(called), x)
            raise self.error(f"{ast.unparse(x.func)} is no function of math, torch, numpy or Python itself", x)
        try:
            return call_by_name(called, arguments)
        except ValueError as error:
            raise self.error(str(error), x) from None

    def resolved(self, x: ast.expr, values: dict[str, Node]) -> Any:
        """What a name, or an attribute of a module, stands for outside the function."""
        if isinstance(x, ast.Attribute):
            module = self.resolved(x.value, values)
            if isinstance(module, ModuleType) and hasattr(module, x.attr):
                return getattr(module, x.attr)
            raise self.error(f"{ast.unparse(x)} is unknown", x)
        if isinstance(x, ast.Name) and x.id not in values and x.id in self.outside:
            return self.outside[x.id]
        raise self.error(f"{ast.unparse(x)} is unknown", x)


def _either(operator: str, a: Node, b: Node) -> Node:
    """``a and b`` or ``a or b`` as Python has it: one of the two, and of truth values a truth value."""
    if a.truth and b.truth:
        return call(operator, a, b)
    return call("where", a, b, a) if operator == "and" else call("where", a, a, b)
