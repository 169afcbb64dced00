"""Expressions: what text and Python functions mean, what is wrong with them, and their derivatives against autograd."""

from __future__ import annotations

import functools
import itertools
import math
import random
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fastops.kit import expression
from fastops.kit.expression import ExpressionError, derivative, evaluate, from_function, names, parse, parse_signature
from fastops.kit.expression.functions import FUNCTIONS
from fastops.kit.expression.nodes import call, name

X, Y = 1.25, -0.75


def value(text: str, **more: float) -> float:
    (result,) = evaluate(parse(text, ["x", "y", *more], "op"), {"x": X, "y": Y, **more})
    return result.item()


# Meaning of texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / 2", 0.5),
        ("-x ** 2", -(X**2)),
        ("2 ** -x", 2**-X),
        ("2 ** 3 ** 2", 2.0**9),
        ("x - y - 1", X - Y - 1),
        ("x / y / 2", X / Y / 2),
        ("x + y * 2", X + Y * 2),
        ("-7 % 3", 2),
        ("8 - 7 % 4 * 2", 2),
        ("7 % y", 7 % Y),
        ("fmod(-7, 3)", -1),
        ("x > 0 ? x : y", X),
        ("x if x < 0 else y", Y),
        ("x < 0 ? 1 : y < 0 ? 2 : 3", 2),
        ("1 if x < 0 else 2 if y < 0 else 3", 2),
        ("x > 0 ? x < 1 ? 1 : 2 : 3", 2),
        ("(x > 0) + (y < 0)", 2),
        ("x > 0 && y > 0", 0),
        ("x > 0 || y > 0", 1),
        ("x > 0 and y > 0 or x > 1", 1),
        ("x > 2 and (y > 0 or x > 1)", 0),
        ("not x > 2", 1),
        ("!x > -1", 1),
        ("not not x", 1),
        ("!(x == 1.25)", 0),
        ("x != y", 1),
        ("where(x >= y, 1, 2)", 1),
        ("1e-3 + .5 + 2. + 1.5f + 2E2", 204.001),
        ("pi", math.pi),
        ("e", math.e),
        ("-inf", -math.inf),
        ("min(x, y, -3)", -3),
        ("max(1, y, x)", X),
        ("clamp(5, -1, x)", X),
        ("round(2.5) + round(3.5)", 6),
        ("arctan2(x, fabs(y))", math.atan2(X, abs(Y))),
        ("t = exp(-x); x / (1 + t)", X / (1 + math.exp(-X))),
        ("t = x; t = t * t; t * t", X**4),
        ("x\n  + y", X + Y),
        ("+x", X),
        ("x;", X),
    ],
)
def test_meaning(text: str, expected: float) -> None:
    assert value(text) == pytest.approx(expected, rel=1e-15)


def test_several_outputs() -> None:
    x = torch.tensor([1.0, 4.0], dtype=torch.float64)
    results = evaluate(parse("sqrt(x), x > 2, 7", ["x"]), {"x": x})
    assert [r.tolist() for r in results] == [[1, 2], [0, 1], 7]


def test_names_hide_constants() -> None:
    assert value("e * 2", e=3.0) == 6


@pytest.mark.parametrize(
    ("text", "message", "caret"),
    [
        ("x +", "expected a number, a name or '(', got the end", 3),
        ("", "expected a number, a name or '(', got the end", 0),
        ("zyx(x)", "unknown function 'zyx'", 0),
        ("1 + sigmiod(x)", "unknown function 'sigmiod'; did you mean 'sigmoid'?", 4),
        ("x * z", "unknown name 'z'; there is x", 4),
        ("x ^ 2", "cannot read '^'; a power is x ** y", 2),
        ("x & 1", "cannot read '&'; there is && and ||, no bitwise operator", 2),
        ("1.2.3", "cannot read '1': what begins here is no number", 0),
        ("2x", "cannot read '2': what begins here is no number", 0),
        ("exp(x, x)", "exp takes 1 argument, got 2", 0),
        ("clamp(x)", "clamp takes 3 arguments, got 1", 0),
        ("min(x)", "min takes 2 arguments, got 1", 0),
        ("0 < x < 1", "comparisons in a row differ between C and Python: write a < b && b < c", 6),
        ("(x", "expected ')', got the end", 2),
        ("x)", "expected an operator or the end, got ')'", 1),
        ("x x", "expected an operator or the end, got 'x'", 2),
        ("x ? 1", "expected ':', got the end", 5),
        ("x if x", "expected 'else', got the end", 6),
        ("t = x", "expected ';' behind the value of 't', got the end", 5),
        ("not", "expected a number, a name or '(', got the end", 3),
        ("x\x00y", "cannot read '\\x00'", 1),
        ("\ud800", "cannot read '\\ud800'", 0),
        ("1 + torch.exp(x)", "a function is called by its name alone: write exp(…), not torch.exp", 4),
        ("x.exp()", "a function is called by its name alone: write exp(x), not x.exp", 0),
        ("np.pi", "a constant has a name alone: write pi, not np.pi", 0),
        ("torch.gelu(x)", "unknown: torch.gelu; names have no dots", 0),
        *(
            (text, f"'{name}' is no function of an element: pass a tensor of random numbers, torch.rand_like(x)", at)
            for text, name, at in (
                ("rand()", "rand", 0),
                ("x * randn_like(x)", "randn_like", 4),
                ("torch.bernoulli(x)", "bernoulli", 0),
                ("np.random.uniform()", "uniform", 0),
            )
        ),
    ],
)
def test_errors_show_the_place(text: str, message: str, caret: int) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse(text, ["x"], "op")
    first, line, mark = str(raised.value).split("\n")
    assert first == f"[op] {message}"
    assert line == "  " + "".join(c if c.isprintable() else " " for c in text)
    assert mark == " " * (2 + caret) + "^"


@pytest.mark.parametrize("place", [0, 40, 3000, 5990])
def test_of_a_long_line_an_error_shows_a_part(place: int) -> None:
    text = ("x + " * 1500)[:place] + "zz" + (" + x" * 1500)[: 6000 - place] + "yyyy" * 20
    with pytest.raises(ExpressionError, match=r"unknown name 'zz'|expected an .*'zz'") as raised:
        parse(text, ["x"], "op")
    first, line, mark = str(raised.value).split("\n")
    assert len(first) < 80
    assert len(line) < 120
    assert line[len(mark) - 1 :].startswith("zz")


def test_a_long_word_does_not_fill_a_message() -> None:
    for read in (
        lambda: parse("y" * 6000, ["x"]),
        lambda: parse(f"{'f' * 6000}(x)", ["x"]),
        lambda: parse(f"torch.{'f' * 6000}(x)", ["x"]),
        lambda: parse_signature(f"f({'a' * 6000} b)"),
        lambda: parse_signature(f"f({'x, ' * 3000})"),
        lambda: parse_signature([1] * 6000),
        lambda: parse_signature(f"f(x, *, a={'b' * 6000})"),
        lambda: parse_signature(f"{'f' * 6000}(x) -> y"),
    ):
        with pytest.raises(ExpressionError) as raised:
            read()
        assert len(str(raised.value)) < 400


def test_errors_show_the_line() -> None:
    with pytest.raises(ExpressionError) as raised:
        parse("t = exp(x);\n  t * exq(x)\n  + 1", ["x"], "op")
    assert str(raised.value).endswith("\n    t * exq(x)\n        ^")


@pytest.mark.parametrize(
    "text",
    ["(" * 5000 + "x", "-" * 9000 + "(" * 900, "exp(" * 2000, "x ? " * 2000, "2 ** " * 1500 + "x", "not " * 2000 + "x",
     "x if x else " * 800 + "x", "x" * 20_000, "(" * 60 + "x" + ")" * 60],
    ids=lambda text: text[:5],
)  # fmt: skip
def test_hostile_depth_is_an_error(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse(text, ["x"], "op")


def test_a_full_stack_is_an_error() -> None:
    def deep(levels: int) -> None:
        if levels:
            deep(levels - 1)
        else:
            parse("(" * 40 + "x" + ")" * 40, ["x"])

    def deeper_and_deeper() -> None:
        for levels in range(100, sys.getrecursionlimit(), 10):
            deep(levels)

    with pytest.raises(ExpressionError, match="nested too deep for what is left of the stack"):
        deeper_and_deeper()


def test_long_chains() -> None:
    """Depth of the graph is none of the text, and is met nowhere with recursion."""
    (node,) = parse(" + ".join(["sin(x)"] * 1000), ["x"])
    x = torch.tensor(0.5, dtype=torch.float64)
    assert evaluate([node], {"x": x})[0].item() == pytest.approx(1000 * math.sin(0.5))
    (node,) = parse("t = sin(x);" + "t = t * t + 0.1;" * 500 + "t", ["x"])
    second = derivative(derivative(node, "x"), "x")
    assert evaluate([second], {"x": x})[0].isfinite()
    assert expression.emit_c([second], ["y"], "float").count("\n") < 6000


def test_sharing() -> None:
    a, b = parse("exp(x * y), 1 / exp(x * y)", ["x", "y"])
    assert expression.emit_c([a, b], ["a", "b"], "double").count("exp(") == 1
    assert names(b) == {"x", "y"}


def test_signed_zeros_and_nans_are_told_apart() -> None:
    assert math.copysign(1, value("0 * -1")) == -1
    assert math.isnan(value("x * 0 / 0"))
    assert math.isnan(evaluate(parse("x * 0", ["x"]), {"x": math.inf})[0].item())


# Signatures


def test_signatures() -> None:
    assert parse_signature("swish(x, *, beta=1.0)") == expression.Signature("swish", ("x",), {"beta": 1.0})
    assert parse_signature(" f ( a,b , s=-1e-3, t=inf,) ").scalars == {"s": -1e-3, "t": math.inf}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("swish", "expected a signature"),
        ("swish(x", "expected a signature"),
        ("f(x) -> Tensor", "expected a signature such as .*, without types and results"),
        ("f(Tensor x)", "expected a name without its type, tensors before .* and scalars behind it, got 'Tensor x'"),
        ("f(x, *, float a=1.0)", "expected a name without its type, .* got 'float a'"),
        ("f(x: Tensor)", "expected a name without its type, .* got 'x: Tensor'"),
        ("f()", "expected a name"),
        ("f(*, a=1)", "at least one tensor"),
        ("f(x, *, beta)", "needs a default"),
        ("f(s=1, x)", "needs a default"),
        ("f(x, x)", "two arguments are called 'x'"),
        ("f(x, a=b)", "the default of 'a' must be a number, got 'b'"),
        ("f(int)", "'int' is a keyword of Python or C++"),
        ("f(lambda)", "'lambda' is a keyword"),
        ("f(linux)", "'linux' is a keyword"),
        ("f(expf)", "'expf' is a function of the C library"),
        ("f(kit_0)", "for generated code"),
        ("f(_x)", "starts with a letter"),
        ("f(é)", "ASCII"),
        ("class(x)", "ASCII"),
        ("f(x, *, *)", "expected a name"),
    ],
)
def test_wrong_signatures(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match="(?s)" + message.replace("(", r"\(").replace("+", r"\+")):
        parse_signature(text)


# Values and dtypes


@pytest.mark.parametrize(
    ("dtype", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
        (torch.complex64, torch.complex64),
    ],
)
def test_dtypes(dtype: torch.dtype, computed: torch.dtype) -> None:
    (y,) = evaluate(parse("x * 0.1 + beta", ["x", "beta"]), {"x": torch.ones(3, dtype=dtype), "beta": 1.0})
    assert y.dtype == computed
    assert torch.equal(y, torch.full((3,), 1.0, dtype=computed) * torch.tensor(0.1, dtype=computed) + 1)


def test_numbers_have_the_full_precision() -> None:
    x = torch.ones(2, dtype=torch.float64)
    assert evaluate(parse("(x > 0) * 0.1", ["x"]), {"x": x})[0].tolist() == [0.1, 0.1]
    assert evaluate(parse("x > 0 ? 0.1 : 0.2", ["x"]), {"x": x})[0].tolist() == [0.1, 0.1]


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ValueError, match="expected a value for y, got x"):
        evaluate(parse("x + y", ["x", "y"]), {"x": 1.0})


def test_under_torch() -> None:
    """Broadcast, meta tensors, vmap, forward and reverse mode, and one graph of torch.compile."""
    function = expression.torch_function(parse("x * sigmoid(beta * x) + y", ["x", "y", "beta"]), ("x", "y", "beta"))

    def plain(x: Tensor, y: Tensor) -> Tensor:
        return function(x, y, 1.5)[0]

    x, y = torch.randn(3, 1, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    expected = x * torch.sigmoid(1.5 * x) + y
    torch.testing.assert_close(plain(x, y), expected)
    assert plain(x.to("meta"), y.to("meta")).shape == (3, 4)
    torch.testing.assert_close(torch.vmap(plain, (0, None))(x, y), expected)
    tangent = torch.func.jvp(lambda x: plain(x, y), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent[:, :1], torch.func.grad(lambda x: plain(x, y[:1]).sum())(x))
    torch.testing.assert_close(torch.compile(plain, fullgraph=True, backend="aot_eager")(x, y), expected)


# Derivatives

POINTS = (
    -math.inf,
    -1e30,
    -200.0,
    -30.0,
    -3.7,
    -1.0,
    -0.6,
    -1e-5,
    -0.0,
    0.0,
    0.3,
    0.5,
    1.0,
    2.0,
    2.5,
    40.0,
    1e30,
    math.inf,
)
ORDINARY = (-30.0, -3.7, -1.6, -0.9, -0.6, -0.1, 0.1, 0.3, 0.5, 0.8, 1.7, 2.0, 2.5, 8.0)


def grid(points: Sequence[float], arity: int) -> list[Tensor]:
    """All pairs or triples of the points."""
    rows = torch.tensor(list(itertools.product(points, repeat=arity)), dtype=torch.float64)
    return list(rows.T.clone())


def arguments_of(function: str, points: Sequence[float]) -> tuple[list[str], dict[str, Tensor]]:
    arity = FUNCTIONS[function].arity
    inputs = grid(points, arity)
    if function == "where":
        inputs[0] = (inputs[0] > 0).double()
    letters = ["a", "b", "c"][:arity]
    return letters, dict(zip(letters, inputs, strict=True))


def autograd(y: Tensor, x: Tensor, **options: bool) -> Tensor:
    if not y.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(y.sum(), x, allow_unused=True, materialize_grads=True, **options)[0]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_are_autograds(function: str) -> None:
    letters, inputs = arguments_of(function, ORDINARY)
    node = expression.nodes.as_real(call(function, *map(name, letters)))
    for first, second in itertools.product(letters, letters):
        leaves = {k: x.clone().requires_grad_() for k, x in inputs.items()}
        (y,) = evaluate([node], leaves)
        theirs = autograd(y, leaves[first], create_graph=True)
        theirs2 = autograd(theirs, leaves[second])
        once = derivative(node, first)
        ours, ours2 = evaluate([once, derivative(once, second)], inputs)
        torch.testing.assert_close(ours.expand_as(theirs), theirs.detach(), rtol=1e-12, atol=1e-13, equal_nan=True)
        torch.testing.assert_close(ours2.expand_as(theirs2), theirs2, rtol=1e-11, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives_at_the_edges(function: str) -> None:
    """Ties, zeros, infinities: first derivatives are autograd's there too."""
    # What is left of a division by 0 or infinity has no derivative; torch's is another division.
    points = [x for x in POINTS if x and math.isfinite(x)] if function == "%" else POINTS
    letters, inputs = arguments_of(function, points)
    node = expression.nodes.as_real(call(function, *map(name, letters)))
    for letter in letters:
        leaves = {k: x.clone().requires_grad_() for k, x in inputs.items()}
        theirs = autograd(evaluate([node], leaves)[0], leaves[letter])
        (ours,) = evaluate([derivative(node, letter)], inputs)
        torch.testing.assert_close(ours.expand_as(theirs), theirs, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_unused_names_have_no_derivative() -> None:
    (node,) = parse("exp(x)", ["x"])
    assert repr(derivative(node, "y")) == "0.0"


def test_branches_not_taken_do_not_count() -> None:
    x = torch.tensor([-1.0, 0.0, 4.0], dtype=torch.float64)
    (node,) = parse("x > 0 ? sqrt(x) : 0", ["x"])
    assert evaluate([derivative(node, "x")], {"x": x})[0].tolist() == [0, 0, 0.25]
    gradient = expression.chain([node], ["grad"], "x")
    grad = torch.tensor([math.inf, math.nan, 2.0], dtype=torch.float64)
    assert evaluate([gradient], {"x": x, "grad": grad})[0].tolist() == [0, 0, 0.5]


def test_chain_of_several_outputs() -> None:
    nodes = parse("x * y, x + 1, y", ["x", "y"])
    values = {"x": 2.0, "y": 3.0, "g": 10.0, "h": 100.0, "k": 1000.0}
    gradients = [expression.chain(nodes, ["g", "h", "k"], x) for x in ("x", "y", "z")]
    assert [g.item() for g in evaluate(gradients, values)] == [130, 1020, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("text", ["x * sigmoid(x)", "x / (1 + exp(-x))", "x / (exp(-x) + 1)"])
def test_far_out_derivatives_are_finite(text: str, dtype: torch.dtype) -> None:
    x = torch.tensor([-1000.0, -100.0, -90.0, -20.0, -1.0, 0.0, 1.0, 20.0, 90.0, 100.0, 1000.0], dtype=dtype)
    node = parse(text, ["x"])[0]
    truth = x.double().requires_grad_()
    y = truth * torch.sigmoid(truth)
    once = autograd(y, truth, create_graph=True)
    for k, expected in enumerate((y, once, autograd(once, truth))):
        (ours,) = evaluate([node], {"x": x})
        tolerance = 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(ours.double(), expected.detach(), rtol=tolerance, atol=tolerance, msg=f"order {k}")
        node = derivative(node, "x")


MAGNITUDES = (1e-45, 1e-42, 1e-40, 1e-38, 1e-30, 1e-20, 1e-10, 0.3, 0.7, 1.0, 3.1, 1e10, 1e18, 1e20, 1e30, 1e38)
FAR_OUT = tuple(sign * x for x in MAGNITUDES for sign in (1, -1))
EXPONENTS = (-2.5, -2.0, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0)  # of pow
GRADS = (1e-42, 1e-40, 1e-30, 1e-15, 1.0, 1e15, 1e30, 1e38)


def far_out(function: str) -> tuple[expression.Node, dict[str, Tensor]]:
    """A function, and its arguments with the gradient of its result, all in float32.

    Of two arguments both are tiny or huge, and the gradient is 1: three such factors have no order that suits all.
    """
    arity = FUNCTIONS[function].arity
    arguments = [FAR_OUT, EXPONENTS if function == "pow" else FAR_OUT][:arity]
    columns = [*arguments, GRADS if arity == 1 else (1.0,)]
    rows = torch.tensor(list(itertools.product(*columns)), dtype=torch.float32)
    letters = ["a", "b"][:arity]
    node = expression.nodes.as_real(call(function, *map(name, letters)))
    return node, dict(zip([*letters, "grad"], rows.T.clone(), strict=True))


def assert_digits(node: expression.Node, letter: str, inputs: dict[str, Tensor], got: Tensor) -> None:
    """Compare gradients in float32 with float64's where the value and the gradient are floats of float32.

    A derivative that is below the normal numbers has as many digits as these leave.
    """
    leaves = {k: x.double().requires_grad_() for k, x in inputs.items()}
    (y,) = evaluate([node], leaves)
    truth = (autograd(y, leaves[letter]) * leaves["grad"]).detach()
    (near,) = evaluate([node], inputs)
    exact = ((near.double() - y.detach()).abs() <= 1e-5 * y.detach().abs()) & near.isfinite()
    info = torch.finfo(torch.float32)
    here = (exact & (truth.abs() < info.max)).expand_as(truth)
    wrong = here & ~((got.double() - truth).abs() <= 3e-5 * truth.abs() + 4 * info.smallest_normal * info.eps)
    shown = [x[wrong][:8].tolist() for x in (*inputs.values(), got.expand_as(truth), truth)]
    assert not wrong.any(), f"arguments, gradient of the result, ours, float64's: {shown}"


TO_TWO_NUMBERS = [function for function, row in FUNCTIONS.items() if row.arity <= 2]


@pytest.mark.parametrize("function", TO_TWO_NUMBERS)
def test_derivatives_of_tiny_and_huge_numbers_keep_their_digits(function: str) -> None:
    """1 / x of a denormal x is infinite, and x * x overflows: the gradient does not have to."""
    node, inputs = far_out(function)
    for letter in inputs.keys() - {"grad"}:
        (got,) = evaluate([expression.chain([node], ["grad"], letter)], inputs)
        assert_digits(node, letter, inputs, got)


@pytest.mark.parametrize("function", ["copysign", *(function for function, row in FUNCTIONS.items() if row.arity == 1)])
def test_second_derivatives_of_tiny_and_huge_numbers(function: str) -> None:
    node, inputs = far_out(function)
    inputs = {k: x[inputs["grad"] == 1] for k, x in inputs.items()}
    if function == "sigmoid":  # 1 - 2 * out is 0 where x is tiny, as torch's is
        inputs = {k: x[inputs["a"].abs() > 0.1] for k, x in inputs.items()}
    once = derivative(node, "a")
    (got,) = evaluate([expression.chain([once], ["grad"], "a")], inputs)
    assert_digits(once, "a", inputs, got)


@pytest.mark.parametrize(
    "text",
    [
        *("x * log(x)", "x * log2(x)", "x * log10(x)", "x * rsqrt(x)", "x * x ** -0.9", "x * sqrt(x)"),
        *("x * x ** (0 * y - 0.9)", "x * (log(x) + x)", "x * (log(x) - log(0.5 * (x + y)))", "x * log(x / y)"),
        *("log(exp(x))", "log(exp(x) + exp(2 * x))", "1 / (1 + exp(-x))", "log(1 + exp(x))", "log1p(exp(-x))"),
    ],
)
def test_derivatives_of_compositions_keep_their_digits(text: str) -> None:
    nodes = parse(text, ["x", "y"])
    points = [-95.0, -30.0, -1.0, 1.0, 30.0, 80.0] if "exp" in text else [x for x in FAR_OUT if 0 < x < 1e20]
    rows = torch.tensor(list(itertools.product(points, [1e-40, 1e-30, 1.0, 1e10], [1.0, 3.0])), dtype=torch.float32)
    inputs = dict(zip(["x", "y", "grad"], rows.T.clone(), strict=True))
    (got,) = evaluate([expression.chain(nodes, ["grad"], "x")], inputs)
    assert_digits(nodes[0], "x", inputs, got)


def test_the_derivative_of_expm1_is_exp() -> None:
    """expm1(x) + 1 loses its digits where x is far below 0."""
    x = torch.tensor([-95.0, -30.0, -5.0, -1e-40, 1.0, 80.0])
    (got,) = evaluate([derivative(parse("expm1(x)", ["x"])[0], "x")], {"x": x})
    torch.testing.assert_close(got.double(), x.double().exp(), rtol=1e-5, atol=1e-44)


def test_derivatives_at_kinks() -> None:
    """As the guide says."""
    expected = {"max(x, 0)": 0.5, "min(x, 0)": 0.5, "x > 0 ? x : 0": 0, "x >= 0 ? x : 0": 1, "relu(x)": 0, "abs(x)": 0}
    nodes = [derivative(parse(text, ["x"])[0], "x") for text in expected]
    assert [y.item() for y in evaluate(nodes, {"x": torch.zeros(())})] == list(expected.values())


# Python functions

SLOPE = 0.25


def huber(x, y, *, delta=1.0):  # type: ignore[no-untyped-def]
    """With what a body may hold."""
    d = abs(x - y)
    half: float = 0.5
    if d < delta:
        return half * d**2
    d -= 0.5 * delta
    return delta * d


def leaky(x):  # type: ignore[no-untyped-def]
    y = x
    if x < 0:
        y = y * SLOPE
        if -1 < x <= -0.5 and not x > -0.6:
            y = math.tanh(x) % 1
    elif x > 1 or x == 0.5:
        pass
    else:
        y = torch.arctan2(x, torch.exp(x)) + np.pi
    return y, float(x > 0)


def relu_by_return(x):  # type: ignore[no-untyped-def]
    if x > 0:
        return max(x, 0.5, SLOPE)
    return -x if x < -1 else +x


def either(x):  # type: ignore[no-untyped-def]
    """One of the operands, as Python has it; of comparisons a truth value."""
    y = (x - 0.5 and x * 3) + (x - 0.5 or 7.0)
    if (x > 0 and x < 1) or x:
        y = y + (x > 0 or x < -1)
    return y


FUNCTION_CASES = [huber, leaky, relu_by_return, either, lambda x: x * x + math.sqrt(abs(x))]


@pytest.mark.parametrize("function", FUNCTION_CASES, ids=["huber", "leaky", "relu_by_return", "either", "lambda"])
def test_from_function(function: Callable[..., float]) -> None:
    signature, nodes = from_function(functools.partial(function).func)
    points = [-2.0, -0.9, -0.75, -0.5, -0.0, 0.2, 0.5, 0.75, 1.5]
    for x in points:
        values = {"x": x} | ({"y": 0.3} if "y" in signature.tensors else {}) | signature.scalars
        expected = function(*(torch.tensor(values[k], dtype=torch.float64) for k in signature.tensors))
        ours = [v.item() for v in evaluate(nodes, values)]
        theirs = [float(v) for v in expected] if isinstance(expected, tuple) else [float(expected)]
        assert ours == pytest.approx(theirs, rel=1e-14), x


def loop(x):  # type: ignore[no-untyped-def]
    for _ in range(3):
        x = x * x
    return x


def helper(x):  # type: ignore[no-untyped-def]
    return huber(x, x)


def no_return(x):  # type: ignore[no-untyped-def]
    if x > 0:
        return x


def unknown(x):  # type: ignore[no-untyped-def]
    return x + undefined  # type: ignore[name-defined]  # noqa: F821


def many(*x):  # type: ignore[no-untyped-def]
    return x[0]


def no_default(x, *, slope):  # type: ignore[no-untyped-def]
    return x * slope


def bits(x):  # type: ignore[no-untyped-def]
    return x << 2


def noisy(x):  # type: ignore[no-untyped-def]
    return x * torch.rand(3)


def drawn(x):  # type: ignore[no-untyped-def]
    return x * random.random()


def method(x):  # type: ignore[no-untyped-def]
    return x.exp()


def ieee(x):  # type: ignore[no-untyped-def]
    return math.remainder(x, 3.0)


@pytest.mark.parametrize(
    ("function", "message", "line"),
    [
        (ieee, "math.remainder rounds to the nearest", "    return math.remainder(x, 3.0)"),
        (loop, "For cannot be made an expression", "    for _ in range(3):\n      ^"),
        (
            helper,
            "huber is no function of math, torch, numpy or Python itself",
            "    return huber(x, x)\n             ^",
        ),
        (no_return, "must return a value on every way", "    if x > 0:\n      ^"),
        (unknown, "undefined is unknown", "    return x + undefined"),
        (many, r"\*args and \*\*kwargs have no place", "def many"),
        (no_default, "the scalar 'slope' needs a default", "def no_default"),
        (bits, "the operator LShift", "    return x << 2\n             ^"),
        (noisy, "'rand' is no function of an element: pass a tensor of random numbers", "    return x * torch.rand(3)"),
        (drawn, "'random' is no function of an element", "    return x * random.random()"),
        (method, "x is unknown", "    return x.exp()\n             ^"),
        (math.exp, "cannot be read", ""),
    ],
)
def test_functions_that_are_no_expressions(function: Callable[..., float], message: str, line: str) -> None:
    with pytest.raises(ExpressionError, match=message) as raised:
        from_function(function)
    assert line in str(raised.value)
