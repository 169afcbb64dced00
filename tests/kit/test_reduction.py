"""kit.reduction against float64 of the same rounded inputs, and under what PyTorch does to functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from common import DTYPES, needs_nvrtc
from torch import Tensor, func

from fastops import kit
from fastops.kit import compiler, nvrtc, program
from fastops.kit.source import REDUCTIONS

norm2 = kit.reduction("norm2(x)", map="x * x", reduce="a + b", post="sqrt(a)", backward="grad * x / out")
length = kit.reduction("length(x)", map="x * x", post="sqrt(a)")
mean = kit.reduction("mean(x)", post="a / n")
peak = kit.reduction("peak(x)", reduce="max(a, b)")
dot = kit.reduction("dot(x, y, *, s=2.0)", map="s * x * y")
joined = kit.reduction("joined(x)", map="abs(x)", reduce="hypot(a, b)", identity=0.0)
product = kit.reduction("product(x)", reduce="a * b")

TRUTH: dict[kit.Reduce, Callable[..., Tensor]] = {
    norm2: lambda x, dim, keepdim: (x * x).sum(dim, keepdim).sqrt(),
    length: lambda x, dim, keepdim: (x * x).sum(dim, keepdim).sqrt(),
    mean: lambda x, dim, keepdim: x.mean(dim, keepdim),
    peak: lambda x, dim, keepdim: x.amax(dim, keepdim),
    joined: lambda x, dim, keepdim: (x * x).sum(dim, keepdim).sqrt(),
}
OPS = pytest.mark.parametrize("op", TRUTH)
DIMS = pytest.mark.parametrize("dim", [None, 0, 1, -1, (0, 2), (1, 2), (-1, 0), (0, 1, 2)], ids=str)


def every(dim: Any, x: Tensor) -> Any:
    return tuple(range(x.dim())) if dim is None else dim


def compare(got: Tensor, truth: Tensor) -> None:
    assert got.shape == truth.shape
    eps = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.double(), truth, rtol=8 * eps, atol=8 * eps)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[:, ::2, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, 9, -1),
    "offset": lambda x: x.flatten()[1:-1].view(2, -1, 1),
}


@OPS
@DIMS
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dims_and_layouts(device: torch.device, op: kit.Reduce, dim: Any, layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(5, 12, 38, device=device))
    for keepdim in (False, True):
        compare(op(x, dim=dim, keepdim=keepdim), TRUTH[op](x.double(), every(dim, x), keepdim))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 31, 33, 512, 1000, 1025, 4099, 32768, 32769, 100003])
@pytest.mark.parametrize("along", [0, 1])
def test_lengths(device: torch.device, dtype: torch.dtype, n: int, along: int) -> None:
    """Short rows, long ones, and those that are split; elements next to one another and rows next to one another."""
    x = torch.randn((n, 3) if along == 0 else (3, n), device=device).to(dtype)
    got = length(x, dim=along)
    assert got.dtype == dtype
    compare(got, x.double().square().sum(along).sqrt())
    compare(peak(x, dim=along), x.double().amax(along))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("n", [100, 3001, 70000])
@pytest.mark.parametrize("along", [0, 1])
def test_a_row_does_not_depend_on_the_others(device: torch.device, dtype: torch.dtype, n: int, along: int) -> None:
    x = torch.randn((n, 130) if along == 0 else (130, n), device=device).to(dtype)
    every_row = kit.reduction("soft(x)", map="exp(x)")(x, dim=along)
    assert torch.equal(every_row, kit.reduction("soft(x)", map="exp(x)")(x, dim=along))
    for first, rows in ((0, 2), (5, 64), (127, 3)):
        some = kit.reduction("soft(x)", map="exp(x)")(x.narrow(1 - along, first, rows), dim=along)
        assert torch.equal(some, every_row[first : first + rows])


def test_halves_are_summed_in_float32(device: torch.device) -> None:
    x = torch.full((5000,), 100.0, dtype=torch.float16, device=device)
    assert float(mean(x)) == 100.0
    x.requires_grad_()
    assert float(mean(x)) == 100.0  # with a derivative the sum is on its own: 500000 is no float16


def test_two_tensors_broadcast_and_are_promoted(device: torch.device) -> None:
    x, y = torch.randn(4, 1, 7, device=device), torch.randn(5, 1, device=device, dtype=torch.float16)
    got = dot(x, y, dim=(0, -1), s=0.5)
    assert got.dtype == torch.float32
    compare(got, (0.5 * x.double() * y.double()).sum((0, 2)))
    assert dot(x.double(), y).dtype == torch.float64


def test_empty(device: torch.device) -> None:
    x = torch.ones(0, 3, device=device)
    assert torch.equal(length(x, dim=0), torch.zeros(3, device=device))
    assert torch.equal(product(x, dim=0), torch.ones(3, device=device))
    assert torch.equal(joined(x, dim=0, keepdim=True), torch.zeros(1, 3, device=device))
    assert length(x, dim=1).shape == peak(x, dim=1).shape == (0,)
    with pytest.raises(RuntimeError, match=r"^\[peak\] an empty reduction needs identity=, got shape \[0, 3\]$"):
        peak(x, dim=0)


@pytest.mark.parametrize("dim", [None, 0, -1, ()])
def test_0_d(device: torch.device, dim: Any) -> None:
    x = torch.tensor(-3.0, device=device)
    assert norm2(x, dim=dim) == 3
    x.requires_grad_()
    assert torch.autograd.grad(length(x, dim=dim), x)[0] == -1


def test_the_result_is_the_callers_own(device: torch.device) -> None:
    x = torch.ones(3, 1, device=device)
    kit.reduction("plain(x)")(x, dim=1).zero_()
    kit.reduction("plain(x)")(x[0, 0]).zero_()
    assert x.sum() == 3


def test_integers(device: torch.device) -> None:
    got = length(torch.arange(5, device=device))
    assert got.dtype == torch.float32
    compare(got, torch.tensor(30.0, device=device, dtype=torch.float64).sqrt())


# Derivatives and transforms


@OPS
@DIMS
def test_gradients_twice(device: torch.device, op: kit.Reduce, dim: Any) -> None:
    x = torch.randn(3, 2, 4, dtype=torch.float64, device=device, requires_grad=True)
    for keepdim in (False, True):
        assert torch.autograd.gradcheck(lambda x: op(x, dim=dim, keepdim=keepdim), x)  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda x: op(x, dim=dim, keepdim=keepdim), x)  # noqa: B023


def test_gradients_of_broadcast_tensors(device: torch.device) -> None:
    x = torch.randn(3, 1, 4, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(2, 1, dtype=torch.float64, device=device, requires_grad=True)
    for dim in (None, 0, (1, 2)):
        assert torch.autograd.gradcheck(lambda x, y: dot(x, y, dim=dim, s=3.0), (x, y))  # noqa: B023
        assert torch.autograd.gradgradcheck(lambda x, y: dot(x, y, dim=dim, s=3.0), (x, y))  # noqa: B023


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradient_values_of_other_dtypes(device: torch.device, dtype: torch.dtype) -> None:
    x = torch.randn(6, 50, device=device).to(dtype).requires_grad_()
    (got,) = torch.autograd.grad(length(x, dim=1).sum(), x)
    assert got.dtype == dtype
    truth = x.detach().double().requires_grad_()
    compare(got, torch.autograd.grad(truth.square().sum(1).sqrt().sum(), truth)[0])


@OPS
def test_functorch(device: torch.device, op: kit.Reduce) -> None:
    x = torch.randn(4, 3, 5, dtype=torch.float64, device=device)
    for dim in (None, 0, -1, (0, 1)):
        f = lambda x: op(x, dim=dim)  # noqa: B023, E731
        stacked = torch.stack([f(part) for part in x])
        compare(func.vmap(f)(x), stacked)
        compare(func.vmap(f, 1)(x.transpose(0, 1).contiguous()), stacked)
        compare(func.vmap(func.grad(lambda v: f(v).sum()))(x), func.grad(lambda v: func.vmap(f)(v).sum())(x))  # noqa: B023
        _, tangent = func.jvp(f, (x[0],), (torch.ones_like(x[0]),))
        compare(tangent, func.jacrev(f)(x[0]).flatten(-2).sum(-1))
    compare(func.vmap(op)(x[:, 0, 0]), torch.stack([op(v) for v in x[:, 0, 0]]))
    compare(
        func.hessian(lambda v: op(v, dim=0).sum())(x[0]), func.jacrev(func.grad(lambda v: op(v, dim=0).sum()))(x[0])
    )


@pytest.mark.sample(pairs=False)  # Inductor's C++ takes seconds a case
@OPS
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(device: torch.device, op: kit.Reduce, dynamic: bool) -> None:
    def f(x: Tensor) -> Tensor:
        return op(2 * x, dim=1).sin() + op(x, dim=(0, 1), keepdim=True).sum()

    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, dynamic=dynamic)
    for rows in (3, 4):
        x = torch.randn(rows, 6, dtype=torch.float64, device=device, requires_grad=True)
        compare(compiled(x).detach(), f(x).detach())
        compare(torch.autograd.grad(compiled(x).sum(), x)[0], torch.autograd.grad(f(x).sum(), x)[0])


def test_opcheck(device: torch.device) -> None:
    for dtype in (torch.float16, torch.float32):
        x = torch.randn(4, 6, 5, device=device).to(dtype)
        for dim in ([1], [], [0, 2]):
            torch.library.opcheck(length._program.raw, (x, dim, True, False))
            torch.library.opcheck(length._program.raw, (x.transpose(0, 2), dim, False, True))


# Definitions


@OPS
def test_what_was_prepared_is_compiled_at_no_call(
    device: torch.device, op: kit.Reduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    op.prepare(torch.bfloat16, torch.float64, device=device)
    monkeypatch.delattr(program.Program, "compile")
    for dtype in (torch.bfloat16, torch.float64):
        x = torch.randn(4, 6, device=device).to(dtype).requires_grad_()
        for dim in (0, 1, None):
            op(x.detach(), dim=dim)
            op(x, dim=dim).sum().backward()


def test_without_a_compiler_torch_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "available", lambda: None)
    op = kit.reduction("uncompiled(x)", map="exp(x)", reduce="hypot(a, b)")
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    compare(op(x, dim=1).detach(), x.detach().exp().square().sum(1).sqrt())
    assert torch.autograd.gradcheck(lambda x: op(x, dim=1), x)
    assert op.explain(x).startswith("plain PyTorch: [uncompiled] there is no C++ compiler")


ERRORS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "dim": (lambda: norm2(torch.ones(2, 3), dim=2), IndexError, r"\[norm2\] dim must be in \[-2, 1\], got 2"),
    "dim twice": (lambda: norm2(torch.ones(2, 3), dim=(0, -2)), RuntimeError, r"\[norm2\] dim names .* twice"),
    "tensors": (lambda: dot(torch.ones(2)), TypeError, r"\[dot\] expected 2 tensors, x, y, got 1"),
    "no tensor": (lambda: dot(torch.ones(2), 1.0), TypeError, r"\[dot\] y must be a Tensor, got float"),
    "shapes": (lambda: dot(torch.ones(2), torch.ones(3)), RuntimeError, r"x and y must have shapes that broadcast"),
    "scalar": (lambda: dot(torch.ones(2), torch.ones(2), t=1.0), TypeError, r"\[dot\] takes no scalar t"),
    "map": (lambda: kit.reduction("f(x, y)"), kit.ExpressionError, r"\[f\] map= is needed"),
    "two maps": (lambda: kit.reduction("f(x)", map="x, x"), kit.ExpressionError, r"\[f map\] expected one"),
    "reserved": (lambda: kit.reduction("f(n)"), kit.ExpressionError, r"\[f\] n has a meaning"),
    "reduce": (lambda: kit.reduction("f(x)", reduce="a + x"), kit.ExpressionError, "x"),
    "nine tensors": (
        lambda: kit.reduction("f(c, d, g, h, i, j, k, l, m)", map="c"),
        kit.ExpressionError,
        r"\[f\] expected at most 8 tensors, got 9",
    ),
    "dim of text": (lambda: norm2(torch.ones(2), dim="0"), TypeError, r"\[norm2\] dim must be an integer .*, got '0'"),
    "keepdim": (lambda: norm2(torch.ones(2), keepdim=1), TypeError, r"\[norm2\] keepdim must be a bool, got int"),
    "identity": (lambda: kit.reduction("f(x)", identity="0"), TypeError, r"\[f\] identity must be a number, got str"),
    "gradients": (lambda: kit.reduction("f(x)", backward="grad, grad"), kit.ExpressionError, "each of x, got 2"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case: str) -> None:
    call, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message):
        call()


# CUDA


@needs_nvrtc
@pytest.mark.sample(pairs=False)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("variant", REDUCTIONS)
def test_cuda_source_compiles(arch: str, variant: int) -> None:
    for dtypes in ((2, 2, 2), (2, 0, 0), (2, 0, 2)) if variant else ((0, 0, 0), (1, 1, 1), (3, 3, 3), (3, 3, 1)):
        source = dot._program.cuda(dtypes, variant)
        assert nvrtc.compile(source, name="dot", arch=arch).cubin.startswith(b"\x7fELF")
