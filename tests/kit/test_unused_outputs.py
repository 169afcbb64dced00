"""An output that got no gradient contributes nothing, however infinite its derivative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func

from fastops import kit
from fastops.kit import program

root = kit.elementwise("root(x)", "sqrt(x), 2 * x")
polar = kit.elementwise("polar(x, y)", "hypot(x, y), atan2(y, x)")
given = kit.elementwise(
    "given(x, y)",
    "hypot(x, y), x * y, x - y",
    backward="""
    grad0 * x / out0 + grad1 * y + grad2, (x > 0 ? grad0 * (1 / y) : -grad0 / y) + x * grad1 - grad2
    """,
)


def origin(count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.zeros(3, dtype=dtype, requires_grad=True) for _ in range(count)]


def angle(x: Tensor, y: Tensor) -> Tensor:
    return polar(x, y)[1].sum()


def product(x: Tensor, y: Tensor) -> Tensor:
    return given(x + 2, y)[1].sum() + given(x, y)[2].sum()


CASES: dict[str, tuple[Callable[..., Tensor], int, list[float]]] = {
    "root": (lambda x: root(x)[1].sum(), 1, [2.0]),
    "angle": (angle, 2, [0.0, 0.0]),
    "given": (product, 2, [1.0, 1.0]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
@pytest.mark.parametrize("case", CASES)
def test_gradients(case: str, dtype: torch.dtype) -> None:
    function, count, expected = CASES[case]
    if dtype.is_complex and case != "root":
        pytest.skip("a function of real numbers")
    x = origin(count, dtype)
    found = [torch.autograd.grad(function(*x).real, x)]
    if not dtype.is_complex:
        found.append(func.grad(function, tuple(range(count)))(*[t.detach() for t in x]))
        found.append(func.vmap(func.grad(function, tuple(range(count))))(*[t.detach() for t in x]))
    for gradients in found:
        for gradient, value in zip(gradients, expected, strict=True):
            torch.testing.assert_close(gradient, torch.full_like(gradient, value))


@pytest.mark.parametrize("case", ["root", "angle"])
def test_compiled(case: str) -> None:
    function, count, expected = CASES[case]
    x = origin(count)
    gradients = torch.autograd.grad(torch.compile(function, fullgraph=True, backend="aot_eager")(*x), x)
    for gradient, value in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, torch.full_like(gradient, value))


def test_second_derivatives() -> None:
    (x,) = origin(1)
    (once,) = torch.autograd.grad((root(x)[1] ** 2).sum(), x, create_graph=True)
    assert torch.autograd.grad(once.sum(), x)[0].tolist() == [8, 8, 8]
    assert torch.equal(func.hessian(lambda x: (root(x)[1] ** 2).sum())(x.detach()), 8 * torch.eye(3, dtype=x.dtype))
    # The backward by x and y has an output for each, of which one is used.
    both = kit.elementwise("both(x, y)", "x * x + y ** 1.5")
    x, y = origin(2)
    (by_x, _) = torch.autograd.grad(both(x, y).sum(), (x, y), create_graph=True)
    second = torch.autograd.grad(by_x.sum(), (x, y), materialize_grads=True)
    assert [g.tolist() for g in second] == [[2, 2, 2], [0, 0, 0]]


def test_all_gradients_together_are_as_before() -> None:
    x, y = (torch.rand(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    for op in (polar, given):
        total = torch.autograd.grad(sum((k + 1) * o.sum() for k, o in enumerate(op(x, y))), (x, y))
        parts = [torch.autograd.grad((k + 1) * o.sum(), (x, y), retain_graph=True) for k, o in enumerate(op(x, y))]
        for whole, *each in zip(total, *parts, strict=True):
            torch.testing.assert_close(whole, sum(each))
    assert torch.autograd.gradcheck(polar, (x, y))
    assert torch.autograd.gradgradcheck(polar, (x, y))
    assert torch.autograd.grad(polar(x, y)[1], x, torch.eye(4, dtype=x.dtype), is_grads_batched=True)[0].shape == (4, 4)


def test_gradients_of_each_output_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    op = kit.elementwise("ready(x, y)", "x * exp(y), sqrt(x - y)")
    op.prepare(torch.float32, device="cpu")
    monkeypatch.delattr(program.Program, "compile")
    x, y = (torch.rand(4, requires_grad=True) for _ in range(2))
    for output in (0, 1):
        for inputs in ((x,), (y,), (x, y)):
            a, b = (t if any(t is i for i in inputs) else t.detach() for t in (x, y))
            torch.autograd.grad(op(a, b)[output].sum(), inputs)


def test_no_gradient_at_all() -> None:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> None:
            return None

    (x,) = origin(1)
    y = sum(Nothing.apply(o).sum() for o in root(x)) + x.sum()
    assert torch.autograd.grad(y, x)[0].tolist() == [1, 1, 1]
