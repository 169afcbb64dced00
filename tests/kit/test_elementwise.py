"""kit.elementwise against float64 of the same rounded inputs, and under what PyTorch does to functions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from common import DTYPES, needs_nvrtc
from torch import Tensor, func

from fastops import kit
from fastops.kit import compiler, nvrtc, program

swish = kit.elementwise("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
relu = kit.elementwise("relu(x)", "x > 0 ? x : 0", backward="x > 0 ? grad : 0")
wave = kit.elementwise("wave(x, y, *, s=2.0)", "x * y + s * sin(x), exp(y) * x")


@kit.elementwise
def huber(x: Any, y: Any, *, delta: float = 1.0) -> Any:
    d = abs(x - y)
    return 0.5 * d * d if d < delta else delta * (d - 0.5 * delta)


def true_swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


def true_wave(x: Tensor, y: Tensor, s: float = 2.0) -> tuple[Tensor, Tensor]:
    return x * y + s * torch.sin(x), torch.exp(y) * x


def compare(got: Tensor, truth: Tensor) -> None:
    """``got`` to within a rounding or two of its dtype; ``truth`` is float64."""
    assert got.shape == truth.shape
    eps = torch.finfo(got.dtype).eps
    torch.testing.assert_close(
        got.double(), truth, rtol=4 * eps, atol=4 * eps * max(1.0, float(truth.abs().nan_to_num().max()))
    )


def double(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)


# Values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 255, 513, 4099])
def test_contiguous(device: torch.device, dtype: torch.dtype, size: int) -> None:
    x = (3 * torch.randn(size, device=device)).to(dtype)
    got = swish(x, beta=1.5)
    assert got.dtype == dtype
    if size:
        compare(got, true_swish(x.double(), 1.5))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[..., ::2],
    "offset": lambda x: x.flatten()[1:],
    "column": lambda x: x[:, :1, :1],
    "expanded": lambda x: x[:1].expand(5, -1, -1),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(1, 0, 2)[:, 1:],
    "0-d": lambda x: x[0, 0, 0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(6, 8, 16, device=device).to(dtype))
    got, plain = swish(x), torch.exp(x)
    compare(got, true_swish(x.double()))
    assert got.stride() == plain.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 7), (7,)), ((5, 1), (1, 8)), ((4, 1, 16), (3, 16)), ((), (3, 4)), ((0, 3), (1, 3)), ((64, 1), (64, 64))],
    ids=str,
)
def test_broadcasting(device: torch.device, dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.randn(a, device=device).to(dtype), torch.randn(b, device=device).to(dtype)
    for got, truth in zip(wave(x, y), true_wave(x.double(), y.double()), strict=True):
        assert got.dtype == dtype
        if truth.numel():
            compare(got, truth)
    for got, plain in zip(wave(x, y.t() if y.dim() == 2 and a == b else y), [x + y] * 2, strict=True):
        assert got.stride() == plain.stride()


def test_mixed_layouts_choose_torchs_strides(device: torch.device) -> None:
    x, y = torch.randn(6, 8, device=device), torch.randn(8, 6, device=device).t()
    for a, b in ((x, y), (y, x), (x[:, ::2], y[:, ::2])):
        for got, truth in zip(wave(a, b), true_wave(a.double(), b.double()), strict=True):
            compare(got, truth)
            assert got.stride() == (a + b).stride()


@pytest.mark.parametrize("second", [*DTYPES, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("first", DTYPES)
def test_promotion(device: torch.device, first: torch.dtype, second: torch.dtype) -> None:
    x = torch.randn(4, 6, device=device).to(first)
    for y in (torch.ones(6, dtype=second, device=device), torch.tensor(1, dtype=second, device=device)):
        expected = (x + y).dtype
        for got in wave(x, y):
            assert got.dtype == expected
    if not second.is_complex:
        y = torch.rand(6, device=device).to(second)
        compare(wave(x, y)[0], true_wave(x.double(), y.double())[0])


def test_integers_give_floating_point(device: torch.device) -> None:
    x = torch.arange(-3, 4, device=device)
    compare(swish(x), true_swish(x.double()))
    assert swish(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half(device: torch.device, dtype: torch.dtype) -> None:
    """Each value there is, denormals, infinities and NaN among them, survives widening and narrowing."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    same = kit.elementwise("same(x)", "x * 1.0 + 0.0 * 0.0")
    got = same(x)
    assert torch.equal(got.isnan(), x.isnan())
    assert torch.equal(got[~got.isnan()], x[~x.isnan()])
    third = kit.elementwise("third(x)", "x / 3")
    got = third(x)
    torch.testing.assert_close(got, (x.float() / 3).to(dtype), rtol=0, atol=0, equal_nan=True)


PLACED = [
    "exp(x)",
    "log(x)",
    "sin(x)",
    "cos(x)",
    "tan(x)",
    "tanh(x)",
    "sinh(x)",
    "asinh(x)",
    "expm1(x)",
    "log1p(x)",
    "log2(x)",
    "x ** 0.3",
    "1.7 ** x",
    "hypot(x, 0.3)",
    "atan2(x, 0.7)",
    "erf(x)",
    "erfc(x)",
    "rsqrt(x)",
    "x % 0.7",
    "x / (1 + exp(-x))",
    "x > 1 ? exp(x) : log(x)",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("body", PLACED)
def test_a_result_does_not_depend_on_its_place(device: torch.device, body: str, dtype: torch.dtype) -> None:
    """Vectors and the loop's remainder call the same functions: else results would vary with the number of threads."""
    op = kit.elementwise("placed(x)", body)
    x = (torch.rand(256, dtype=torch.float64, device=device) * 8 + 0.01).to(dtype)
    whole = op(x)
    for n in range(1, 68):
        first = n % 7
        part, apart = slice(first, first + n), slice(first, first + 3 * n, 3)
        assert torch.equal(op(x[part]), whole[part])
        assert torch.equal(op(x[apart]), whole[apart])
        assert torch.equal(op(x[n].expand(n)), whole[n].expand(n))
        assert torch.equal(op(x[n]), whole[n])
        assert torch.equal(op(x[: 3 * n].view(3, n).t()), whole[: 3 * n].view(3, n).t())


def test_many_dimensions_that_do_not_merge() -> None:
    x = torch.randn(*[2] * 18, dtype=torch.float64)[..., :1].permute(*range(0, 18, 2), *range(1, 18, 2))
    y = torch.randn(*[2] * 17, 1, dtype=torch.float64)
    compare(wave(x, y)[0], true_wave(x, y)[0])


def test_outputs_are_the_callers_own() -> None:
    x = torch.randn(5)
    for body in ("x", "x, x", "1, x"):
        got = kit.elementwise("f(x)", body)(x)
        for output in got if isinstance(got, tuple) else (got,):
            output.zero_()
    assert x.abs().sum() > 0


def test_eight_tensors() -> None:
    names = "abcdefgh"
    op = kit.elementwise(f"total({', '.join(names)})", " + ".join(f"{k + 1} * {n} * {n}" for k, n in enumerate(names)))
    x = [torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in names]
    compare(op(*x).detach(), sum((k + 1) * t.detach() ** 2 for k, t in enumerate(x)))
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x, fast_mode=True)


def test_derivatives_beyond_what_kernels_take() -> None:
    """The third by eight tensors has 25 in and 17 out."""
    names = [f"x{k}" for k in range(8)]
    op = kit.elementwise(f"product({', '.join(names)})", " * ".join(f"exp({k + 1} * {x})" for k, x in enumerate(names)))
    x = [(0.1 * torch.rand(3, dtype=torch.float64)).requires_grad_() for _ in names]
    y = op(*x)
    value = y.detach()
    for order in (1, 2, 3, 4):
        y = sum(torch.autograd.grad(y.sum(), x, create_graph=order < 4))
        torch.testing.assert_close(y.detach(), 36**order * value)  # 36 = 1 + 2 + ... + 8


def test_more_arguments_than_kernels_take() -> None:
    names = [f"x{k}" for k in range(26)]
    total = kit.elementwise(f"total({', '.join(names)})", " + ".join(f"{x} * {x}" for x in names))
    x = [torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in names]
    compare(total(*x).detach(), sum(t.detach() ** 2 for t in x))
    for gradient, t in zip(torch.autograd.grad(total(*x).sum(), x), x, strict=True):
        compare(gradient, 2 * t.detach())
    assert total.explain(*x) == (
        "plain PyTorch: kernels take 26 tensors in and out and 8 scalars, this has 26 in, 1 out and 0"
    )
    total.prepare(device="cpu")
    scalars = ", ".join(f"s{k}={k}" for k in range(9))
    scaled = kit.elementwise(f"scaled(x, *, {scalars})", "x * s8")
    assert scaled(torch.ones(1), s8=3).item() == 3
    norm = kit.reduction(
        f"norm(x, *, {scalars.rpartition(',')[0]})", map="x * x", post="sqrt(a) * s7", backward="grad * n"
    )
    assert torch.autograd.grad(norm(x[0]), x[0])[0].tolist() == [2, 2]


def test_a_large_tensor_is_shared_out(device: torch.device) -> None:
    x = torch.randn(1 << 20, device=device)
    compare(swish(x), true_swish(x.double()))
    compare(swish(x.view(1024, 1024).t()[:, ::2]), true_swish(x.double().view(1024, 1024).t()[:, ::2]))


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
    op = kit.elementwise("uncompiled(x)", "x * exp(x)")
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    compare(op(x).detach(), (x * x.exp()).detach())
    assert torch.autograd.gradcheck(op, x)
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


# CUDA

ARCHS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
VARIANTS = [0, 1, 3, 5, 7]


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_cuda_source_compiles(arch: str) -> None:
    """Without a GPU: each variant, and dtypes alone and mixed."""
    for variant in VARIANTS:
        for dtypes in (
            ((2, 2, 2), (0, 0, 0)) if variant else ((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3), (2, 0, 2), (2, 2, 3))
        ):
            source = wave._program.cuda(dtypes, variant)
            assert nvrtc.compile(source, name="wave", arch=arch).cubin.startswith(b"\x7fELF")


def test_wide_indices(cuda: torch.device) -> None:
    if torch.cuda.mem_get_info()[0] < 14 << 30:
        pytest.skip("needs 14 GiB of GPU memory")
    x = torch.zeros(2**31 + 64, device=cuda, dtype=torch.float16)
    x[-1] = 1.0
    assert float(swish(x)[-1]) == pytest.approx(0.731, abs=1e-3)
    assert float(swish(x[::2][: 2**30])[0]) == 0.0


def test_side_stream_and_graph(cuda: torch.device) -> None:
    x = torch.randn(1 << 20, device=cuda)
    truth = true_swish(x.double())
    swish.prepare(device=cuda)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = swish(x)
    stream.synchronize()
    compare(got, truth)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = swish(x)
    x.copy_(-x)
    graph.replay()
    torch.cuda.synchronize()
    compare(got, true_swish(x.double()))


def test_a_scalar_of_the_cpu_beside_cuda_tensors(cuda: torch.device) -> None:
    x = torch.randn(5, device=cuda)
    compare(
        wave(x, torch.tensor(0.5))[0], true_wave(x.double(), torch.tensor(0.5, dtype=torch.float64, device=cuda))[0]
    )
