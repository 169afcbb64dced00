"""The C++ that is emitted, compiled, against torch's functions: special values, large arguments, both precisions."""

from __future__ import annotations

import re

import pytest
import torch
from common import needs_compiler, needs_nvrtc
from compiled import REAL, evaluate_compiled
from test_expression import TO_TWO_NUMBERS, arguments_of, assert_digits, far_out

from fastops.kit import expression, nvrtc
from fastops.kit.expression import PRELUDE_CPP, PRELUDE_CUDA, derivative, emit_c, evaluate, parse
from fastops.kit.expression.functions import FUNCTIONS
from fastops.kit.expression.nodes import call, name

INF, NAN = float("inf"), float("nan")
SPECIAL = (-INF, -3e38, -1e10, -1000.0, -88.0, -20.0, -2.5, -1.0, -0.5, -1e-3, -1e-30, -0.0)
SPECIAL += (0.0, 1e-40, 1e-8, 0.25, 0.5, 0.9999, 1.0, 1.5, 2.0, 3.0, 20.0, 88.5, 1000.0, 1e10, 3e38, INF, NAN)

# In units in the last place. glibc's vector functions are right to 4, with which what follows them counts.
ULPS = 8

# min and max of two zeros may be either; so may relu of -0.
ZEROS_MAY_DIFFER = {"min", "max", "fmin", "fmax", "clamp", "relu", "sign"}


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
def test_functions(dtype: torch.dtype) -> None:
    for function in FUNCTIONS:
        letters, inputs = arguments_of(function, SPECIAL)
        inputs = {k: x.to(dtype) for k, x in inputs.items()}
        node = expression.nodes.as_real(call(function, *map(name, letters)))
        # In float64, which also spares us torch's remainder of floats: it is NaN for far larger a than b.
        expected = evaluate([node], {k: x.double() for k, x in inputs.items()})[0].to(dtype)
        (ours,) = evaluate_compiled([node], inputs)
        assert_near(function, ours, expected, inputs)


def assert_near(function: str, ours: torch.Tensor, expected: torch.Tensor, inputs: dict[str, torch.Tensor]) -> None:
    info = torch.finfo(ours.dtype)
    near = (ours - expected).abs() <= ULPS * info.eps * expected.abs() + ULPS * info.smallest_normal * info.eps
    same = near | (ours == expected) | (ours.isnan() & expected.isnan())
    if function not in ZEROS_MAY_DIFFER:
        same &= ours.isnan() | (ours.signbit() == expected.signbit())
    wrong = ~same
    shown = [x[wrong][:8].tolist() for x in (*inputs.values(), ours, expected)]
    assert not wrong.any(), f"{function}: arguments, ours, torch's: {shown}"


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
def test_derivatives_and_several_outputs(dtype: torch.dtype) -> None:
    (node,) = parse("x * tanh(log1p(exp(x))) + (x > y ? hypot(x, y) : copysign(y, x)) * 1e-300", ["x", "y"])
    nodes = [node, derivative(node, "x"), derivative(derivative(node, "x"), "x"), derivative(node, "y")]
    values = {"x": torch.randn(1000, dtype=dtype) * 4, "y": torch.randn(1000, dtype=dtype)}
    for ours, expected in zip(evaluate_compiled(nodes, values), evaluate(nodes, values), strict=True):
        torch.testing.assert_close(ours, expected, rtol=40 * torch.finfo(dtype).eps, atol=40 * torch.finfo(dtype).eps)


@needs_compiler
@pytest.mark.parametrize("arity", [1, 2])
def test_derivatives_of_tiny_and_huge_numbers_keep_their_digits(arity: int) -> None:
    """No flag makes denormal numbers 0."""
    nodes, inputs = zip(
        *[far_out(f) for f in TO_TWO_NUMBERS if FUNCTIONS[f].arity == arity and f != "pow"], strict=True
    )
    gradients = [expression.chain([node], ["grad"], letter) for node in nodes for letter in "ab"[:arity]]
    got = iter(evaluate_compiled(gradients, inputs[0]))
    for node in nodes:
        for letter in "ab"[:arity]:
            assert_digits(node, letter, inputs[0], next(got))


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize(
    "number", ["0.1", "1e300", "1e-42", "16777217", "inf", "nan", "1e999", "0.0", "3.4028234e38", "1.0000000596046448"]
)
def test_numbers(number: str, dtype: torch.dtype) -> None:
    """A number is rounded once, to what torch rounds it to."""
    nodes = parse(f"copysign({number}, x), -{number}, x * 0 + {number}", ["x"])
    values = {"x": torch.tensor([1.0, -1.0], dtype=dtype)}
    for ours, expected in zip(evaluate_compiled(nodes, values), evaluate(nodes, values), strict=True):
        torch.testing.assert_close(ours, expected.expand(2), rtol=0, atol=0, equal_nan=True)


@needs_compiler
def test_names_of_tensors_hide_nothing() -> None:
    letters = ["real", "sigmoid", "min", "relu", "log_", "T", "out", "grad", "i32", "M_PI", "j0", "y1", "where", "std"]
    text = " + ".join(letters) + " + sigmoid(real) + min(T, out) + relu(grad) + exp(log_) + clamp(j0, y1, M_PI)"
    for letter in letters:
        assert expression.parse_signature(f"f({letter})").tensors == (letter,)
    values = {letter: torch.randn(9) for letter in letters}
    nodes = parse(text, letters)
    torch.testing.assert_close(evaluate_compiled(nodes, values)[0], evaluate(nodes, values)[0])


def test_float_source_has_no_double() -> None:
    """One double among floats would be computed in double, at a sixty-fourth of the speed on many GPUs."""
    nodes = [call(f, *map(name, "abc"[: row.arity])) for f, row in FUNCTIONS.items()]
    nodes += [derivative(expression.nodes.as_real(node), "a") for node in nodes]
    text = emit_c(nodes, ["y"] * len(nodes), "float")
    assert not re.search(r"\bdouble\b", text)
    assert not re.search(r"\d\.\d*(e[+-]?\d+)?(?![\d.ef])", text)
    called = set(re.findall(r"(\w+)\(", text)) - {"kit_remainder", "kit_sign", "kit_clamp", "float"}
    assert all(function.endswith("f") for function in called), called


def test_preludes_declare_what_is_called() -> None:
    nodes = [expression.nodes.as_real(call(f, *map(name, "abc"[: row.arity]))) for f, row in FUNCTIONS.items()]
    for real in REAL.values():
        called = set(re.findall(r"(\w+)\(", emit_c(nodes, ["y"] * len(nodes), real))) - {"float", "double"}
        for function in called:
            assert re.search(rf"\b{function}\(", PRELUDE_CPP), function
            assert not function.startswith("kit_") or re.search(rf"\b{function}\(", PRELUDE_CUDA), function
    assert "#include" not in PRELUDE_CUDA


@needs_nvrtc
@pytest.mark.parametrize("real", REAL.values())
def test_cuda_compiles(real: str) -> None:
    """Every function and its derivative, without a header."""
    nodes = [expression.nodes.as_real(call(f, *map(name, "abc"[: row.arity]))) for f, row in FUNCTIONS.items()]
    nodes += [derivative(node, "a") for node in nodes] + list(parse("inf, nan, -inf", []))
    body = emit_c(nodes, [f"y[{k}]" for k in range(len(nodes))], real)
    kernel = f'extern "C" __global__ void run({real}* y, {real} a, {real} b, {real} c) {{\n{body}\n}}\n'
    assert nvrtc.compile(PRELUDE_CUDA + kernel, name="test", arch="sm_90", kernels=["run"]).cubin


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
def test_functions_of_functions_keep_special_values(dtype: torch.dtype) -> None:
    """Compilers know that cos(atan(x)) is 1 / sqrt(x² + 1), and forget what NaN makes of it."""
    unary = [f for f, row in FUNCTIONS.items() if row.arity == 1]
    pairs = [f for f, row in FUNCTIONS.items() if row.arity == 2]
    points = (-INF, -2.5, -2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 0.9999, 1.0, 1.5, 2.0, 3.0, INF, NAN)
    values = {"x": torch.tensor(points, dtype=dtype)}
    x, numbers = name("x"), (0.0, -0.0, 0.5, 1.0, -1.0, 2.0, INF, NAN)
    # In one source each inner function is called once: what has another use is not rewritten.
    sources = [
        [call(f, call(g, x)) for f, g in zip(unary, unary[k:] + unary[:k], strict=True)] for k in range(len(unary))
    ]
    for f in pairs:
        sources.append([call(f, x, x), *(call(f, x, c) for c in numbers), *(call(f, c, x) for c in numbers)])
    for nodes in sources:
        nodes = list(map(expression.nodes.as_real, nodes))
        for node, got, truth in zip(nodes, evaluate_compiled(nodes, values), evaluate(nodes, values), strict=True):
            text = emit_c([node], ["y"], "double")
            # Behind relu, min and max a zero may have either sign, and so may what it is divided into.
            unsigned = re.search(r"<= 0|kit_sign|fmin|fmax|[<>] kit|[<>] x", text)
            kinds = [_kind(y.abs() if unsigned else y) for y in (got, truth.expand_as(got))]
            assert torch.equal(*kinds), (text, values["x"], got, truth)


def _kind(y: torch.Tensor) -> torch.Tensor:
    """NaN, or whether it is finite, 0, and its sign."""
    return torch.where(y.isnan(), 8, y.isinf() * 4 + (y == 0) * 2 + y.signbit() * 1)


CHAINS = {
    "max": "t = max(t, y * {k}); ",
    "min of both": "t = min(t * y, t + x); ",
    "clamp": "t = clamp(t + y, -{k}, y); ",
    "where": "t = t > {k} ? t * y : t + x; ",
    "product": "t = t * (t + y); ",
    "power": "t = t ** y; ",
    "relu": "t = relu(t + y) * 0.5 - 0.1; ",
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_derivatives_grow_with_the_length(chain: str, order: int) -> None:
    lengths = []
    for length in (20, 40, 80):
        (node,) = parse("t = x; " + "".join(CHAINS[chain].format(k=k) for k in range(length)) + "t", ["x", "y"])
        for _ in range(order):
            node = derivative(node, "x")
        lengths.append(emit_c([node], ["out"], "float").count("\n"))
    assert lengths[2] - lengths[1] <= 2 * (lengths[1] - lengths[0]) + 8, lengths


@pytest.mark.parametrize("chain", CHAINS)
def test_long_chains_of_choices_combine_no_truth_values(chain: str) -> None:
    """GCC takes minutes to simplify 40 of them."""
    (node,) = parse("t = x; " + "".join(CHAINS[chain].format(k=k) for k in range(40)) + "t", ["x", "y"])
    lines = emit_c([derivative(node, "x"), derivative(node, "y")], ["a", "b"], "float").split("\n")
    combined = {line.split()[2] for line in lines if line.startswith("const bool") and re.search(" [&|] ", line)}
    for line in lines:
        if re.search(" [&|] ", line):
            assert not combined & set(re.findall(r"kit_\d+", line.partition("=")[2])), line
