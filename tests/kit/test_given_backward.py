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
every_derivative = pytest.mark.parametrize(("derivative", "factor", "power"), CASES, ids=[*FIRST, *SECOND])


@pytest.mark.parametrize("op", OPS)
@every_derivative
def test_every_derivative_is_of_the_given_one(
    op: str, derivative: Callable[[Op, Tensor], Tensor], factor: float, power: int
) -> None:
    torch._dynamo.reset()
    x = torch.tensor([1.5, -2.0], dtype=torch.float64)
    torch.testing.assert_close(derivative(OPS[op], x), factor * x**power)


def product(name: str, **parts: Any) -> Any:
    """Return a * b, whose backward calls the op itself."""

    def backward(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return op(grad, b), op(grad, a)

    op = kit.op(f"kit_test::{name}(Tensor a, Tensor b) -> Tensor", backward=backward, **parts)
    return op


PRODUCTS = {
    "elementwise": product("product_of_elements", reference=lambda a, b: a * b, vmap="elementwise"),
    "reference": product("product_by_reference", reference=lambda a, b: a * b),
    "without a reference": product("product_alone", cpu=lambda a, b: a * b),
}


@pytest.mark.parametrize("op", PRODUCTS)
@every_derivative
def test_a_backward_may_call_its_own_op(
    op: str, derivative: Callable[[Op, Tensor], Tensor], factor: float, power: int
) -> None:
    torch._dynamo.reset()
    times, x = PRODUCTS[op], torch.tensor([1.5, -2.0], dtype=torch.float64)
    torch.testing.assert_close(derivative(lambda x: times(x, times(x, x)), x), 3 / 7 * factor * x**power)


@pytest.mark.parametrize("op", PRODUCTS)
def test_jacobians_where_a_backward_calls_its_own_op(op: str) -> None:
    times, x = PRODUCTS[op], torch.randn(2, 3, dtype=torch.float64)

    def squares(times: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda a, b: (times(a, a) + times(b, a)).sum()

    for transform in (func.hessian, lambda f, at: func.jacrev(func.jacrev(f, at), at)):
        torch.testing.assert_close(
            transform(squares(times), (0, 1))(*x), transform(squares(torch.mul), (0, 1))(*x), check_stride=False
        )
    batched = func.vmap(func.hessian(squares(times)))
    torch.testing.assert_close(batched(x, x), func.vmap(func.hessian(squares(torch.mul)))(x, x))


def sort_backward(grad_v: Tensor, i: Tensor) -> Tensor:
    return torch.zeros_like(grad_v).scatter(-1, i, grad_v)


def positive(x: Tensor) -> tuple[Tensor, Tensor]:
    return x > 0, x.relu()


# Each with the same in torch's functions.
INTEGER_OUTPUTS = {
    "sort": (
        kit.op(
            "kit_test::sort(Tensor x) -> (Tensor v, Tensor i)",
            reference=lambda x: tuple(torch.sort(x)),
            backward=sort_backward,
        ),
        lambda x: tuple(torch.sort(x)),
    ),
    "bool": (
        kit.op(
            "kit_test::positive(Tensor x) -> (Tensor m, Tensor y)",
            reference=positive,
            backward=lambda grad_y, m: grad_y * m,
            vmap="elementwise",
        ),
        positive,
    ),
    "hidden bool": (
        kit.op(
            "kit_test::masked(Tensor x) -> (Tensor y, Tensor m)",
            cpu=lambda x: positive(x)[::-1],
            fake=lambda x: (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)),
            backward=lambda grad, m: grad * m,
            outputs=1,
        ),
        torch.relu,
    ),
    "integers alone": (
        kit.op("kit_test::argsort(Tensor x) -> Tensor", reference=torch.argsort, backward=lambda grad: None),
        torch.argsort,
    ),
}
FORWARD: dict[str, Callable[[Any, Tensor], Any]] = {
    "jvp": lambda f, x: func.jvp(f, (x[0],), (x[1],)),
    "jacfwd": lambda f, x: func.jacfwd(f)(x[0]),
    "vmap(jvp)": lambda f, x: func.vmap(lambda x, t: func.jvp(f, (x,), (t,)))(x, x + 1),
    "jvp(vmap)": lambda f, x: func.jvp(func.vmap(f), (x,), (x + 1,)),
    "vmap(jacfwd)": lambda f, x: func.vmap(func.jacfwd(f))(x),
    "linearize": lambda f, x: func.linearize(f, x[0])[1](x[1]),
}


@pytest.mark.parametrize("op", INTEGER_OUTPUTS)
@pytest.mark.parametrize("transform", FORWARD)
def test_forward_mode_of_integer_outputs(op: str, transform: str) -> None:
    ours, theirs = INTEGER_OUTPUTS[op]
    x = torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(FORWARD[transform](ours, x), FORWARD[transform](theirs, x))


def test_dual_numbers_of_integer_outputs() -> None:
    x = torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64)
    with forward_ad.dual_level():
        v, i = map(forward_ad.unpack_dual, INTEGER_OUTPUTS["sort"][0](forward_ad.make_dual(x, 10 * x)))
    assert v.tangent.tolist() == [10, 20, 30]
    assert i.primal.tolist() == [1, 0, 2]
    assert i.tangent is None


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
