"""An expression as source text: one statement a node, so that nothing is computed twice or nested deep."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence

from .nodes import Apply, Name, Node, Number, as_real, before_steps, postorder


def statements(
    nodes: Iterable[Node],
    literal: Callable[[float], str],
    variable: Callable[[str], str],
    statement: Callable[[Apply, str, list[str]], str],
) -> tuple[list[str], list[str]]:
    """The statements, and the value of each node after them.

    Args:
        nodes: what to compute.
        literal, variable: a number and a name in the language.
        statement: ``statement(node, result, values)`` assigns the function of ``values`` to ``result``.
    """
    nodes = tuple(nodes)
    text: dict[Node, str] = {}
    lines: list[str] = []
    for node in postorder(nodes):
        if isinstance(node, Apply):
            text[node] = f"kit_{len(lines)}"
            lines.append(statement(node, text[node], [text[x] for x in node.arguments]))
        elif isinstance(node, Number):
            text[node] = literal(node.value)
        elif isinstance(node, Name):
            text[node] = variable(node.name)
    return lines, [text[node] for node in nodes]


def emit_c(nodes: Sequence[Node], outputs: Sequence[str], real: str, *, short: bool = False) -> str:
    """Statements that compute ``nodes`` and assign them to ``outputs``, in C++ or CUDA C++ after the prelude.

    Args:
        nodes: what to compute.
        outputs: what to assign each to: ``"y"``, ``"out[i]"``, ``"const float y"``.
        real: ``"float"`` or ``"double"``, the type of the variables, which are called as the expression's names.
        short: CUDA C++ of floats, for results that are rounded to a half type; sources/short.cuh stands before it.
    """
    suffix = {"float": "f", "double": ""}[real]
    nodes = [as_real(node) for node in nodes]
    careful = before_steps(nodes) if short else ()

    def literal(value: float) -> str:
        if real == "float":
            value = _rounded_to_float(value)
        if math.isnan(value):
            return f"({real})KIT_NAN"
        text = f"({real})KIT_INF" if math.isinf(value) else f"{abs(value)!r}{suffix}"
        return f"(-{text})" if math.copysign(1, value) < 0 else text

    def statement(node: Apply, result: str, values: list[str]) -> str:
        kind = "bool" if node.truth else real
        function = node.function
        spelling = (node in careful and function.careful) or (short and function.short) or function.c
        return f"const {kind} {result} = {spelling.format(*values, f=suffix)};"

    lines, values = statements(nodes, literal, str, statement)
    lines += [f"{output} = {value};" for output, value in zip(outputs, values, strict=True)]
    return "\n".join(lines)


def _rounded_to_float(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
