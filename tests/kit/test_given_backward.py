"""A backward= that is not the derivative of the op, such as a straight-through estimator's, is the one that counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad

from fastops import kit

# All are x³ with 7x² as their derivative, and so 14x as the second.
seven_sum = kit.reduction("seven_sum(x)", map="x * x * x", backward="7 * x * x * grad")
OPS: dict[str, Callable[..., Any]] = {
    "elementwise": kit.elementwise("seven(x)", "x * x * x", backward="7 * x * x * grad"),
    "reduction": lambda x: seven_sum(x.unsqueeze(-1), dim=-1),
    "op": kit.op(
        "kit_test::seven(Tensor x) -> Tensor",
        reference=lambda x: x * x * x,
        backward=lambda grad, x: 7 * x * x * grad,
    ),
    "op without a reference": kit.op(
        "kit_test::seven_more(Tensor x) -> Tensor",
        cpu=lambda x: x * x * x,
        backward=lambda grad, x: 7 * x * x * grad,
    ),
}

Op = Callable[[Tensor], Tensor]


def dual(f: Op, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def eager(f: Op, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x)[0]


def jvp(f: Op, x: Tensor) -> Tensor:
    return func.jvp(f, (x,), (torch.ones_like(x),))[1]


def grad(f: Op, x: Tensor) -> Tensor:
    return func.grad(lambda x: f(x).sum())(x)


FIRST: dict[str, Callable[[Op, Tensor], Tensor]] = {
    "eager": eager,
    "dual": dual,
    "jvp": jvp,
    "grad": grad,
    "eager vmap": lambda f, x: eager(func.vmap(f), x),
    "grad(vmap)": lambda f, x: grad(func.vmap(f), x),
    "jvp(vmap)": lambda f, x: jvp(func.vmap(f), x),
    "vmap(grad)": lambda f, x: func.vmap(lambda x: grad(f, x))(x),
    "vmap(jvp)": lambda f, x: func.vmap(lambda x: jvp(f, x))(x),
    "compile": lambda f, x: eager(torch.compile(f, backend="aot_eager", fullgraph=True), x),
    "compile(grad)": lambda f, x: torch.compile(lambda x: grad(f, x), backend="aot_eager")(x),
    "compile(jvp)": lambda f, x: torch.compile(lambda x: jvp(f, x), backend="aot_eager")(x),
    "compile(vmap(grad))": lambda f, x: torch.compile(
        lambda x: func.vmap(lambda x: grad(f, x))(x), backend="aot_eager"
    )(x),
}
SECOND: dict[str, Callable[[Op, Tensor], Tensor]] = {
    "grad(grad)": lambda f, x: grad(lambda x: grad(f, x), x),
    "jvp(grad)": lambda f, x: jvp(lambda x: grad(f, x), x),
    "grad(jvp)": lambda f, x: grad(lambda x: jvp(f, x), x),
    "backward of dual": lambda f, x: eager(lambda x: dual(f, x), x),
    "compile(grad(grad))": lambda f, x: torch.compile(lambda x: grad(lambda x: grad(f, x), x), backend="aot_eager")(x),
}
CASES = [(f, 7.0, 2) for f in FIRST.values()] + [(f, 14.0, 1) for f in SECOND.values()]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("derivative", "factor", "power"), CASES, ids=[*FIRST, *SECOND])
def test_every_derivative_is_of_the_given_one(
    op: str, derivative: Callable[[Op, Tensor], Tensor], factor: float, power: int
) -> None:
    torch._dynamo.reset()
    x = torch.tensor([1.5, -2.0], dtype=torch.float64)
    torch.testing.assert_close(derivative(OPS[op], x), factor * x**power)


@pytest.mark.parametrize("op", OPS)
def test_what_cannot_take_it_is_refused(op: str) -> None:
    x = torch.ones(2, dtype=torch.float64)
    with pytest.raises(NotImplementedError, match=r"^\[seven.*\] .*forward mode inside forward mode"):
        jvp(lambda x: jvp(OPS[op], x), x)


def test_several_tensors_and_outputs() -> None:
    op = kit.elementwise("both(x, y)", "x * y, x + y", backward="7 * grad0 * y + grad1, 3 * grad0 * x + grad1")
    x, y = torch.randn(2, 4, dtype=torch.float64)
    moved = func.jvp(op, (x, y), (torch.ones_like(x), 2 * torch.ones_like(y)))[1]
    torch.testing.assert_close(moved, (7 * y + 6 * x, torch.full_like(x, 3.0)))


def test_broadcast_and_promoted() -> None:
    """Gradients and tangents have their input's shape and dtype, in every mode."""
    op = kit.elementwise("given_times(x, y)", "x * y", backward="2 * grad * y, 2 * grad * x")
    x, y = torch.randn(3, 1), torch.randn(4, dtype=torch.float64)
    moved = func.jvp(op, (x, y), (torch.ones_like(x), torch.ones_like(y)))[1]
    torch.testing.assert_close(moved, 2 * (x + y), check_dtype=False)
    expected = (2 * y.sum() * torch.ones_like(x)).float(), 2 * x.double().sum() * torch.ones_like(y)
    leaves = x.clone().requires_grad_(), y.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(op(*leaves).sum(), leaves), expected)
    torch.testing.assert_close(func.grad(lambda x, y: op(x, y).sum(), argnums=(0, 1))(x, y), expected)


def test_beside_integers() -> None:
    """The first tensor has a dtype that no kernel takes."""
    op = kit.elementwise("steps(k, x)", "k * round(x)", backward="0, 5 * grad")
    x = torch.randn(3, requires_grad=True)
    assert torch.equal(torch.autograd.grad(op(torch.arange(3), x).sum(), x)[0], torch.full((3,), 5.0))
