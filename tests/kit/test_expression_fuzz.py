"""Random texts parse or raise ExpressionError; random expressions are worth the same by torch and compiled."""

from __future__ import annotations

import contextlib

import pytest
import torch
from common import needs_compiler
from compiled import REAL, evaluate_compiled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastops.kit.expression import ExpressionError, derivative, emit_c, evaluate, parse, parse_signature
from fastops.kit.expression.functions import ALIASES, FUNCTIONS

WORDS = [
    "x",
    "y",
    "t",
    "=",
    ";",
    ",",
    "(",
    ")",
    "?",
    ":",
    "if",
    "else",
    "not",
    "and",
    "1",
    "2.5",
    "1e400",
    "-0.0",
    "pi",
]
WORDS += [*FUNCTIONS, *ALIASES, "**", "&&", "||", "!", "\n", " ", "\x00", "é", "\ud800", "^", "1.f", ".", "e9"]

texts = st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))


@settings(max_examples=1000, deadline=None)
@given(texts)
def test_texts_parse_or_are_expression_errors(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        parse_signature(text)
    try:
        nodes = parse(text, ["x", "y"])
    except ExpressionError:
        return
    values = {"x": torch.tensor([0.5, -2.0]), "y": torch.tensor([3.0, 0.0])}
    evaluate([derivative(node, "x") for node in nodes], values)
    emit_c(nodes, ["out"] * len(nodes), "float")


# Nothing here amplifies a rounding error much: how exact each function is, test_emit.py compares.
SMOOTH = ["sigmoid", "tanh", "sin", "cos", "atan", "erf", "erfc", "asinh", "abs", "min", "max", "relu", "fmin", "fmax"]
SMOOTH += ["clamp", "isnan", "isfinite", "hypot", "neg"]

leaves = st.one_of(st.sampled_from(["x", "y"]), st.floats(-1.5, 1.5).map(lambda v: f"({v!r})"))


def _larger(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def of(function: str) -> st.SearchStrategy[str]:
        return st.tuples(*[parts] * FUNCTIONS[function].arity).map(lambda a: f"{function}({', '.join(a)})")

    return st.one_of(
        st.sampled_from(SMOOTH).flatmap(of),
        parts.map(lambda a: f"exp(-abs({a}))"),
        st.tuples(parts, st.sampled_from("+-*"), parts).map(lambda p: f"({' '.join(p)})"),
        # Leaves are compared: a condition that hangs on the last bit may go either way.
        st.tuples(leaves, st.sampled_from(["<", ">=", "=="]), leaves, parts, parts).map(
            lambda p: f"({p[0]} {p[1]} {p[2]} && !({p[2]} == 1) ? {p[3]} : {p[4]})"
        ),
    )


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.recursive(leaves, _larger, max_leaves=8), min_size=8, max_size=8))
def test_compiled_is_what_torch_computes(dtype: torch.dtype, bodies: list[str]) -> None:
    nodes = [parse(body, ["x", "y"])[0] for body in bodies]
    points = torch.linspace(-1.5, 1.5, 23, dtype=dtype)
    values = {"x": points.repeat(23), "y": points.repeat_interleave(23)}
    for body, ours, theirs in zip(bodies, evaluate_compiled(nodes, values), evaluate(nodes, values), strict=True):
        tolerance = 1e4 * torch.finfo(dtype).eps
        message = f"{body}: {{}}".format
        torch.testing.assert_close(
            ours, theirs.expand_as(ours), rtol=tolerance, atol=tolerance, equal_nan=True, msg=message
        )
