"""kit.elementwise as an op: derivatives, what PyTorch does to functions, definitions and errors."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from elementwise_ops import compare, double, huber, relu, swish, true_swish, true_wave, wave
from torch import Tensor, func

from fastops import kit
from fastops.kit import compiler, program

# Derivatives

FUNCTIONS = {
    "swish": (lambda x, y: swish(x, beta=0.7)),
    "relu": (lambda x, y: relu(x)),
    "wave": (lambda x, y: wave(x, y)),
    "huber": (lambda x, y: huber(x, y)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shapes", [((4, 5), (5,)), ((4, 1), (1, 5)), ((), (3,)), ((3,), ())], ids=str)
def test_gradients_twice(device: torch.device, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    x, y = (double(device, *shape) for shape in shapes)
    assert torch.autograd.gradcheck(FUNCTIONS[name], (x, y))
    assert torch.autograd.gradgradcheck(FUNCTIONS[name], (x, y))
    assert torch.autograd.gradcheck(FUNCTIONS[name], (x.detach(), y)) or name in ("swish", "relu")


def test_third_derivative(device: torch.device) -> None:
    x = double(device, 3)
    cube = kit.elementwise("cube(x)", "x * x * x")
    y = cube(x).sum()
    for truth in (3 * x.detach() ** 2, 6 * x.detach(), torch.full_like(x, 6.0)):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        compare(y.detach(), truth)


def test_a_given_derivative_is_the_one_that_is_used(device: torch.device) -> None:
    rounded = kit.elementwise("rounded(x)", "round(x)", backward="7 * grad")
    x = double(device, 5)
    assert torch.equal(torch.autograd.grad(rounded(x).sum(), x)[0], torch.full_like(x, 7.0))
    compiled = torch.compile(lambda x: rounded(x).sum(), fullgraph=True)
    assert torch.equal(torch.autograd.grad(compiled(x), x)[0], torch.full_like(x, 7.0))


def test_a_derivative_may_use_the_output(device: torch.device) -> None:
    sigmoid = kit.elementwise("sigmoid(x)", "1 / (1 + exp(-x))", backward="grad * out * (1 - out)")
    x = double(device, 6)
    assert torch.autograd.gradcheck(sigmoid, x)
    assert torch.autograd.gradgradcheck(sigmoid, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradient_values_of_other_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(64, 9, device=device).to(dtype).requires_grad_()
    grad = torch.randn(64, 9, device=device).to(dtype)
    (got,) = torch.autograd.grad(swish(x), x, grad)
    truth = x.detach().double().requires_grad_()
    compare(got, torch.autograd.grad(true_swish(truth), truth, grad.double())[0])
    assert got.dtype == dtype


def test_gradients_at_denormal_numbers(device: torch.device) -> None:
    """1 / p is infinite there, and p / p is 1."""
    text = "p > 0 ? p * log(p) : 0"
    entropy, entropies = kit.elementwise("entropy(p)", text), kit.reduction("entropies(p)", map=text)
    logits = torch.tensor([0.0, 92.0], device=device, requires_grad=True)
    for op in (entropy, lambda p: entropies(p, dim=-1), torch.compile(entropy, fullgraph=True, backend="aot_eager")):
        p = torch.tensor([1e-40, 0.0, 0.5], device=device, requires_grad=True)
        (got,) = torch.autograd.grad(op(p).sum(), p)
        truth = torch.where(p > 0, p.detach().double().log() + 1, 0)
        torch.testing.assert_close(got.double(), truth, rtol=1e-6, atol=0)
        p = torch.softmax(logits, 0)
        (got,) = torch.autograd.grad(op(p).sum(), logits)
        p = p.detach().double()
        truth = p * (p.log() - (p * p.log()).sum())
        torch.testing.assert_close(got[0].double(), truth[0], rtol=1e-4, atol=0)
        assert got[1].abs() < 1e-37


def test_complex_tensors_beside_real_ones(device: torch.device) -> None:
    op = kit.elementwise("turned(x, y)", "x * exp(y)")
    total = kit.reduction("turned_sum(x, y)", map="x * exp(y)", post="a * a")
    x, y = double(device, 3), torch.randn(3, dtype=torch.complex128, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(op, (x, y))
    assert torch.autograd.gradcheck(lambda x, y: total(x, y, dim=0), (x, y))


def test_gradients_have_their_tensors_dtype_and_shape(device: torch.device) -> None:
    x = torch.randn(4, 5, device=device, requires_grad=True)
    y = torch.randn(5, device=device, dtype=torch.float16, requires_grad=True)
    a, b = torch.autograd.grad(wave(x, y)[0].sum(), (x, y))
    assert (a.dtype, a.shape, b.dtype, b.shape) == (torch.float32, x.shape, torch.float16, y.shape)


def test_expanded_and_strided_gradients(device: torch.device) -> None:
    x = double(device, 4, 6)
    truth = torch.autograd.grad(true_swish(x).sum(), x)[0]
    compare(torch.autograd.grad(swish(x), x, torch.ones((), dtype=x.dtype, device=device).expand(4, 6))[0], truth)
    grad = torch.randn(6, 4, dtype=x.dtype, device=device).t()
    compare(torch.autograd.grad(swish(x), x, grad)[0], torch.autograd.grad(true_swish(x), x, grad)[0])


# Transforms


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functorch(device: torch.device, name: str) -> None:
    x, y = double(device, 4, 3).detach(), double(device, 3).detach()

    def f(x: Tensor, y: Tensor) -> Tensor:
        out = FUNCTIONS[name](x, y)
        return sum(o.sin() for o in out) if isinstance(out, tuple) else out.sin()

    stacked = torch.stack([f(row, y) for row in x])
    compare(func.vmap(f, (0, None))(x, y), stacked)
    compare(func.vmap(f, (1, None), out_dims=1)(x.t().contiguous(), y), stacked.t())
    per_row = torch.stack([func.grad(lambda v: f(v, y).sum())(row) for row in x])
    compare(func.vmap(func.grad(lambda v: f(v, y).sum()))(x), per_row)
    v = x[0].clone().requires_grad_()
    compare(per_row[0], torch.autograd.grad(f(v, y).sum(), v)[0])
    _, tangent = func.jvp(lambda v: f(v, y), (x[0],), (torch.ones_like(y),))
    compare(tangent, func.jacfwd(lambda v: f(v, y))(x[0]).sum(-1))
    compare(func.hessian(lambda v: f(v, y).sum())(x[0]), func.jacrev(func.grad(lambda v: f(v, y).sum()))(x[0]))


def test_vmap_of_different_ranks(device: torch.device) -> None:
    x, y = double(device, 5, 2, 3).detach(), double(device, 5, 3).detach()
    got = func.vmap(lambda a, b: wave(a, b)[0])(x, y)
    compare(got, torch.stack([true_wave(a, b)[0] for a, b in zip(x, y, strict=True)]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device: torch.device, dynamic: bool) -> None:
    def chain(x: Tensor, y: Tensor) -> Tensor:
        a, b = wave(swish(2 * x, beta=0.5), y)
        return huber(relu(a), b)

    compiled = torch.compile(chain, fullgraph=True, dynamic=dynamic)
    for rows in (3, 4):
        x, y = double(device, rows, 5), double(device, 5)
        compare(compiled(x, y).detach(), chain(x, y).detach())
        for got, truth in zip(
            torch.autograd.grad(compiled(x, y).sum(), (x, y)),
            torch.autograd.grad(chain(x, y).sum(), (x, y)),
            strict=True,
        ):
            compare(got, truth)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_opcheck(device: torch.device, dtype: torch.dtype) -> None:
    x, y = torch.randn(4, 6, device=device).to(dtype), torch.randn(4, device=device).to(dtype)[:, None]
    torch.library.opcheck(swish._program.raw, (x.t(), 1.5))
    torch.library.opcheck(wave._program.raw, (x, y, 2.0))


def test_meta_tensors() -> None:
    x = torch.empty(4, 6, device="meta", dtype=torch.float16).t()
    assert (swish(x).stride(), swish(x).dtype) == (x.stride(), x.dtype)


# Definitions


def test_what_was_prepared_is_compiled_at_no_call(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    op = kit.elementwise("ahead(x, y, *, s=1.0)", "x * exp(s * y), x - y")
    op.prepare(torch.bfloat16, torch.float32, device=device)
    monkeypatch.delattr(program.Program, "compile")
    for dtype in (torch.bfloat16, torch.float32):
        for needed in ((True, True), (True, False), (False, True)):
            x, y = (torch.randn(4, 6, device=device).to(dtype).requires_grad_(need) for need in needed)
            torch.autograd.backward(op(x, y), [torch.ones_like(x), torch.ones_like(x.t()).t()])


def test_prepared_again_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    op = kit.elementwise("again(x)", "x * exp(x) + 41")
    op.prepare(torch.float32, torch.float16, device="cpu")
    op(torch.ones(1, dtype=torch.float64))
    monkeypatch.delattr(program.Program, "compile")
    op.prepare(torch.float16, torch.float32, device="cpu")
    op.prepare(torch.float64, device="cpu", backward=False)
    with pytest.raises(AttributeError):
        op.prepare(torch.bfloat16, device="cpu")


def test_equal_definitions_are_one_op_and_others_are_not() -> None:
    first, again = (kit.elementwise("same_name(x)", "x + 1") for _ in range(2))
    other = kit.elementwise("same_name(x)", "x + 2")
    assert first.content_hash == again.content_hash != other.content_hash
    x = torch.zeros(3)
    assert (first(x)[0], other(x)[0]) == (1, 2)


STALE = """
import sys, torch
from fastops import kit
op = kit.elementwise("changed(x)", f"{sys.argv[1]} * x")
x = torch.ones(4)
print(float(op(x)[0]), float(torch.compile(lambda x: op(x) + 1, fullgraph=True)(x)[0]))
"""


def test_a_changed_op_takes_nothing_from_a_cache(tmp_path: Path) -> None:
    folders = {name: str(tmp_path / name) for name in ("FASTOPS_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    env = os.environ | folders | {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    for factor in ("2", "5"):
        done = subprocess.run([sys.executable, "-c", STALE, factor], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert [float(x) for x in done.stdout.split()] == [int(factor), int(factor) + 1]


def test_without_a_compiler_torch_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "available", lambda: None)
    monkeypatch.setattr(program, "_warned", set())
    op = kit.elementwise("uncompiled(x)", "x * exp(x)")
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    with pytest.warns(
        UserWarning, match=r"\[uncompiled\] there is no C\+\+ compiler .* CPU tensors take plain PyTorch"
    ):
        compare(op(x).detach(), (x * x.exp()).detach())
    with warnings.catch_warnings():  # once, for other ops and threads too
        warnings.simplefilter("error")
        assert torch.autograd.gradcheck(op, x)
        with ThreadPoolExecutor(4) as pool:
            others = [kit.elementwise(f"uncompiled_{k}(x)", f"x * {k}") for k in range(4)]
            found = list(pool.map(lambda other: other(torch.ones(3)).sum().item(), others))
    assert found == [0, 3, 6, 9]
    assert op.explain(x).startswith("plain PyTorch: [uncompiled] there is no C++ compiler")


def test_explain_says_what_runs(device: torch.device) -> None:
    expected = "CUDA compiled by NVRTC" if device.type == "cuda" else "C++ compiled by"
    if device.type == "cpu" and not compiler.available():
        pytest.skip("no C++ compiler")
    assert swish.explain(torch.randn(3, device=device)).startswith(expected)
    assert swish.explain(torch.arange(3, device=device)).startswith("plain PyTorch: kernels take")
    assert kit.explain(swish, torch.randn(3, device=device), beta=2.0).startswith(expected)


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "too many tensors": (
        lambda: swish(torch.ones(2), torch.ones(2)),
        TypeError,
        r"\[swish\] expected 1 tensor, x, got 2$",
    ),
    "a scalar by position": (
        lambda: swish(torch.ones(2), 2.0),
        TypeError,
        r"\[swish\] expected 1 tensor, x, got 2; scalars go by keyword, beta=2.0$",
    ),
    "a tensor by name": (
        lambda: swish(x=torch.ones(2)),
        TypeError,
        r"\[swish\] expected 1 tensor, x, got 0; tensors go by position$",
    ),
    "sparse": (
        lambda: swish(torch.eye(2).to_sparse()),
        TypeError,
        r"\[swish\] x must be dense, got layout torch.sparse_coo",
    ),
    "a number too large": (lambda: swish(torch.ones(2), beta=10**400), TypeError, r"\[swish\] beta must fit float64"),
    "no tensor": (lambda: wave(torch.ones(2), 1.0), TypeError, r"\[wave\] y must be a Tensor, got float"),
    "no first tensor": (
        lambda: swish(1.0),
        TypeError,
        r"\[swish\] x must be a Tensor, got float|expected a Tensor first",
    ),
    "unknown scalar": (lambda: swish(torch.ones(2), gamma=1.0), TypeError, r"\[swish\] takes no scalar gamma"),
    "no number": (lambda: swish(torch.ones(2), beta="1"), TypeError, r"\[swish\] beta must be a number, got str"),
    "complex": (lambda: swish(torch.ones(2), beta=1j), TypeError, r"\[swish\] beta must be a real number, got complex"),
    "shapes": (
        lambda: wave(torch.ones(2), torch.ones(3)),
        RuntimeError,
        r"\[wave\] x and y must have shapes that broad",
    ),
    "no body": (lambda: kit.elementwise("f(x)"), kit.ExpressionError, "expected a signature and an expression"),
    "unknown name": (lambda: kit.elementwise("f(x)", "x + z"), kit.ExpressionError, "z"),
    "gradients": (lambda: kit.elementwise("f(x, y)", "x + y", backward="grad"), kit.ExpressionError, "each of x, y"),
    "prepare": (lambda: swish.prepare(torch.int32, device="cpu"), kit.KitError, r"\[swish\] prepare expected dtypes"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call()
