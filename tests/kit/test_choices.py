"""What a choice made 0 stays 0 behind a function with an infinite derivative. The truth is torch's autograd."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from common import DTYPES, needs_compiler, needs_nvrtc
from test_expression import autograd

from fastops import kit
from fastops.kit import nvrtc
from fastops.kit.expression import derivative, evaluate, parse

INF, NAN = math.inf, math.nan
POINTS = (-INF, -2.0, -1.0, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, INF, NAN)

CHOICES = ["relu(x)", "clamp(x, 0, 1)", "clamp(x, -1, 1)", "max(x, 0)", "min(x, 1)", "fmax(x, 0)", "fmin(x, 1)"]
CHOICES += ["(x > 0 ? x : 0)", "(x if x < 1 else 1)", "(x > 0 ? 1 : 0) * x", "abs(x)", "pow(x, 0)", "relu(-x)", "x * x"]
CHOICES += ["floor(x)", "ceil(x)", "trunc(x)", "round(x)", "sign(x)", "x % 1", "fmod(x, 1)", "(x > 0)", "relu(x) * 0.5"]
CHOICES += ["max(x, y)", "min(x, y)", "clamp(x, y, 1)", "clamp(y, 0, x)", "(x > y ? x : y)", "copysign(x, y)"]
CHOICES += ["fmax(y, x)", "fmod(x, y)", "pow(x, y)", "max(min(x, y), 0)", "relu(clamp(x, -1, y))", "relu(x) + relu(y)"]
CHOICES += ["relu(x) - clamp(y, 0, 1)", "clamp(exp(x), 0, 1)", "(x > 0 ? relu(y) : clamp(x, 0, 1))", "relu(relu(x))"]
CHOICES += ["clamp(relu(x) * y, 0, 1)", "(x > 0 && y > 0 ? x * y : 0)", "max(relu(x), relu(y))", "min(relu(x), y)"]
CHOICES += ["(x > 0 ? x : relu(y))", "(x > 0 ? relu(y) : x)"]

EDGES = ["sqrt(t)", "t ** 0.5", "t ** 1.5", "t ** -1", "1 / t", "y / t", "rsqrt(t)", "log(t)", "log2(t)", "log10(t)"]
EDGES += ["log1p(t - 1)", "log1p(-t)", "t * log(t)", "y * log(t)", "asin(t)", "acos(t)", "atanh(t)", "acosh(t + 1)"]
EDGES += ["hypot(t, 0)", "atan2(t, 0)", "sqrt(sqrt(t))", "log(1 - sqrt(t))", "sqrt(t * t)", "y * sqrt(t)", "pow(t, y)"]
EDGES += ["pow(y, t)", "1 / (1 + exp(-1 / t))", "sqrt(2 * t) / 3", "sqrt(relu(t))", "erf(1 / t)", "asinh(1 / t)"]


def points(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    pairs = torch.tensor(list(itertools.product(POINTS, repeat=2)), dtype=dtype)
    return {"x": pairs[:, 0].clone(), "y": pairs[:, 1].clone()}


def assert_theirs(got: torch.Tensor, theirs: torch.Tensor, what: str, *, strict: bool) -> None:
    """``strict``: where torch has NaN or infinity, and at infinite arguments, too."""
    inputs = points()
    near = torch.isclose(got, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
    if not strict:
        near |= ~torch.isfinite(theirs + inputs["x"] + inputs["y"])
    where = (~near).nonzero().flatten()[:4].tolist()
    shown = [(*(x[i].item() for x in (*inputs.values(), got, theirs)),) for i in where]
    assert near.all(), f"{what}: x, y, the kit's, torch's: {shown}"


def has_inner(choice: str, edge: str) -> bool:
    """Whether a choice is behind a function: of a branch that is not taken torch has 0 times infinity, the kit 0."""
    return any(inner in choice + edge for inner in ("exp(x)", "x * y", "relu(x) * y", "pow(", "relu(t)"))


@pytest.mark.parametrize("edge", EDGES)
def test_gradients_are_autograds(edge: str) -> None:
    inputs = points()
    for choice in CHOICES:
        (node,) = parse(f"t = {choice}; {edge}", ["x", "y"])
        leaves = {k: x.clone().requires_grad_() for k, x in inputs.items()}
        (y,) = evaluate([node], leaves)
        for first in leaves:
            theirs = autograd(y, leaves[first], create_graph=True)
            once = derivative(node, first)
            what = f"t = {choice}; {edge} by {first}"
            got = evaluate([once], inputs)[0].expand_as(theirs)
            assert_theirs(got, theirs.detach(), what, strict=not has_inner(choice, edge))
            for second in ("x", "y")[first == "y" :]:
                theirs2 = autograd(theirs, leaves[second], retain_graph=True)
                got = evaluate([derivative(once, second)], inputs)[0].expand_as(theirs2)
                assert_theirs(got, theirs2, f"{what} by {second}", strict=False)


UNTAKEN = {
    "relu(x)": lambda x: x < 0,
    "clamp(x, 0, 1)": lambda x: (x < 0) | (x > 1),
    "clamp(x, -1, 1)": lambda x: x.abs() > 1,
    "max(x, 0)": lambda x: x < 0,
    "min(x, 1)": lambda x: x > 1,
    "(x > 0 ? x : 0)": lambda x: ~(x > 0),
    "floor(x)": lambda x: x == x,
    "relu(clamp(exp(x), 2, 0))": lambda x: x == x,
    "pow(x, 0)": lambda x: x == x,
    "(x > 0 ? log(x) : 1)": lambda x: ~(x > 0),
}


@pytest.mark.parametrize("choice", UNTAKEN)
def test_derivatives_of_any_order_are_0_where_the_other_is_taken(choice: str) -> None:
    x = torch.tensor(POINTS, dtype=torch.float64)
    for edge in EDGES:
        (node,) = parse(f"t = {choice}; {edge}", ["x", "y"])
        for order in (1, 2, 3):
            node = derivative(node, "x")
            got = evaluate([node], {"x": x, "y": torch.tensor(0.5, dtype=x.dtype)})[0].expand_as(x)
            zero = got[UNTAKEN[choice](x)]
            assert not zero.count_nonzero(), f"t = {choice}; {edge}, order {order}: {got} at {x}"


SAMPLES = ["sqrt(relu(x))", "clamp(x, 0, 1) ** 0.5", "log(clamp(x, 0, 1))", "1 / relu(x)", "acos(clamp(x, -1, 1))"]
SAMPLES += ["sqrt(max(x, y))", "rsqrt(min(x, y))", "log1p(-clamp(x, y, 1))", "hypot(relu(x), relu(y))"]
SAMPLES += [
    "atan2(relu(x), max(y, 0))",
    "asin(x > y ? x : y)",
    "exp(1 / relu(x)) * sqrt(x * x)",
    "y / (1 + exp(-relu(x)))",
]


@needs_compiler
@pytest.mark.sample(pairs=False)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("body", SAMPLES)
def test_kernels(device: torch.device, body: str, dtype: torch.dtype) -> None:
    op = kit.elementwise("behind(x, y)", body)
    computed = torch.promote_types(dtype, torch.float32)
    # Of zeros of both signs torch's max and clamp return another on CUDA than on the CPU: there none is negative.
    given = {k: x + 0.0 if device.type == "cuda" else x for k, x in points().items()}
    leaves = {k: x.to(device, computed).requires_grad_() for k, x in given.items()}
    (y,) = evaluate(parse(body, ["x", "y"]), leaves)
    theirs = torch.autograd.grad(y.sum(), [*leaves.values()], allow_unused=True, materialize_grads=True)
    ours = [x.detach().to(dtype).requires_grad_() for x in leaves.values()]
    got = torch.autograd.grad(op(*ours).sum(), ours, allow_unused=True, materialize_grads=True)
    torch._dynamo.reset()
    both = torch.compile(op, backend="aot_eager", fullgraph=True)
    compiled = torch.autograd.grad(both(*ours).sum(), ours, allow_unused=True, materialize_grads=True)
    in_func = torch.func.grad(lambda *v: op(*v).sum(), (0, 1))(*[x.detach() for x in ours])
    tolerance = 8 * torch.finfo(dtype).eps
    for found in (got, compiled, in_func):
        for mine, truth in zip(found, theirs, strict=True):
            torch.testing.assert_close(mine, truth.to(dtype), rtol=tolerance, atol=tolerance, equal_nan=True)


@needs_nvrtc
@pytest.mark.parametrize("dtype", range(4))
def test_cuda_source_compiles(dtype: int) -> None:
    for body in SAMPLES:
        op = kit.elementwise("behind(x, y)", body)
        for program in op._gradients.programs():
            source = program.cuda([dtype] * (1 + len(program.tensors)), 0)
            assert nvrtc.compile(source, name="behind", arch="sm_90").cubin


def test_reductions() -> None:
    x = torch.tensor([[-2.0, 0.0, 0.25, 4.0], [-1.0, -1.0, -1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    for text, post, plain in (
        ("sqrt(relu(x))", "a", lambda x: x.relu().sqrt().sum(-1)),
        ("log(clamp(x, 0.5, 1))", "a / n", lambda x: x.clamp(0.5, 1).log().mean(-1)),
        ("x", "sqrt(relu(a))", lambda x: x.sum(-1).relu().sqrt()),
        ("1 / relu(x)", "log(min(a, 1))", lambda x: (1 / x.relu()).sum(-1).clamp(max=1).log()),
    ):
        op = kit.reduction("behind(x)", map=text, post=post)
        (got,) = torch.autograd.grad(op(x, dim=-1).sum(), x)
        (theirs,) = torch.autograd.grad(plain(x).sum(), x)
        torch.testing.assert_close(got, theirs, equal_nan=True)
