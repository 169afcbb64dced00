"""More tensors, outputs and numbers than kernels or torch's dispatcher take: the formula in torch's functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, func

from fastops import kit


def names(count: int) -> list[str]:
    return [f"x{k}" for k in range(count)]


def ring(count: int, outputs: int = 1, scalars: int = 0, backward: str | None = None) -> kit.Elementwise:
    pairs = zip(names(count), [*names(count)[1:], "x0"], strict=True)
    body = " + ".join(f"{x} * {x} * {y}" for x, y in pairs) + "".join(f" + s{k} * x0" for k in range(scalars))
    keywords = ", *" + "".join(f", s{k}=0.0" for k in range(scalars)) if scalars else ""
    signature = f"ring_{count}_{outputs}_{scalars}({', '.join(names(count))}{keywords})"
    return kit.elementwise(signature, ", ".join(f"{k + 1} * ({body})" for k in range(outputs)), backward=backward)


def torchs(*xs: Tensor) -> Tensor:
    return sum((x * x * y for x, y in zip(xs, xs[1:] + xs[:1], strict=True)), torch.zeros(()))


def points(count: int) -> tuple[Tensor, ...]:
    return tuple(torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(count))


def nth(f, order: int, xs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
    y = f(*xs).sum()
    for _ in range(order - 1):
        y = sum((g * g).sum() for g in torch.autograd.grad(y, xs, create_graph=True))
    return torch.autograd.grad(y, xs)


@pytest.mark.parametrize("count", [8, 25, 26, 31, 32, 33, 62, 63, 64, 65, 100])
def test_tensors(count: int) -> None:
    op, xs = ring(count), points(count)
    torch.testing.assert_close(op(*xs), torchs(*xs))
    for order in (1, 2, 3) if count < 32 else (1, 2):
        torch.testing.assert_close(nth(op, order, xs), nth(torchs, order, xs))
    if count > 25:
        assert op.explain(*[x.detach() for x in xs]).startswith("plain PyTorch: kernels take")
    op.prepare(torch.float32, device="cpu")


@pytest.mark.parametrize("count", [33, 64])
def test_transforms(count: int) -> None:
    op, xs = ring(count), tuple(x.detach() for x in points(count))
    ones = tuple(map(torch.ones_like, xs))
    torch.testing.assert_close(func.jvp(op, xs, ones), func.jvp(torchs, xs, ones))
    every = tuple(range(count))
    of_op, of_torch = (func.grad(lambda *xs: f(*xs).sum(), every) for f in (op, torchs))  # noqa: B023
    torch.testing.assert_close(of_op(*xs), of_torch(*xs))
    torch.testing.assert_close(func.vmap(op)(*xs), torchs(*xs))
    torch._dynamo.reset()
    compiled, ys = torch.compile(op, backend="aot_eager", fullgraph=True), points(count)
    torch.testing.assert_close(nth(compiled, 1, ys), nth(torchs, 1, ys))


def test_a_given_backward_counts() -> None:
    op = ring(64, backward=", ".join(["7 * grad"] * 64))
    for f in (op, torch.compile(op, backend="aot_eager", fullgraph=True)):
        assert all((g == 7).all() for g in nth(f, 1, points(64)))
    xs = tuple(x.detach() for x in points(64))
    assert (func.grad(lambda *xs: op(*xs).sum())(*xs) == 7).all()
    assert (func.jvp(op, xs, tuple(map(torch.ones_like, xs)))[1] == 7 * 64).all()


@pytest.mark.parametrize("outputs", [25, 26, 63, 64, 100])
def test_outputs(outputs: int) -> None:
    op, xs = ring(2, outputs), points(2)
    both = [lambda *xs: sum(op(*xs)), lambda *xs: outputs * (outputs + 1) / 2 * torchs(*xs)]
    for order in (1, 2):
        torch.testing.assert_close(*(nth(f, order, xs) for f in both))


@pytest.mark.parametrize("scalars", [8, 9, 60, 61, 70])
def test_numbers(scalars: int) -> None:
    op, xs = ring(2, 1, scalars), points(2)
    for order in (1, 2):
        torch.testing.assert_close(nth(op, order, xs), nth(torchs, order, xs))
    torch.testing.assert_close(op(*xs, s7=2.0), torchs(*xs) + 2 * xs[0])


def test_reductions() -> None:
    op, xs = kit.reduction(f"ring_8({', '.join(names(8))})", map=" * ".join(names(8))), points(8)
    for order in (1, 2, 3):
        torch.testing.assert_close(nth(op, order, xs), nth(lambda *xs: torch.stack(xs).prod(0).sum(), order, xs))
    keywords = ", ".join(f"s{k}=1.0" for k in range(60))
    many = kit.reduction(f"numbers_60(x, *, {keywords})", map="s59 * x * x")
    assert torch.equal(many(xs[0], s59=2.0), 2 * (xs[0] * xs[0]).sum())


def test_of_an_op_of_ones_own() -> None:
    def op(count: int) -> Any:
        arguments = ", ".join(f"Tensor {x}" for x in names(count))
        return kit.op(f"limits::add(Tensor self, {arguments}) -> Tensor", reference=lambda *xs: sum(xs))

    xs = points(64)
    torch.testing.assert_close(nth(op(63), 1, xs), tuple(map(torch.ones_like, xs)))
    with pytest.raises(kit.KitError, match=r"^\[add\] an op of torch's has at most 64 arguments, got 65$"):
        op(64)
