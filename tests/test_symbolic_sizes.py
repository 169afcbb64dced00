"""Sizes stay symbolic: no operator makes a constant of a size, or a bound for it, that the plain formula has not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

import fastops
from fastops import kit
from fastops.cases import CASES
from fastops.cases.case import Case

CLASSES, FEATURES = 50, 16


def constants(function: Callable[..., Any], tensors: tuple[Tensor, ...], order: int) -> set[str]:
    """Trace a derivative of this order with symbolic sizes. Return the sizes that became constants, and the bounds."""

    def derivative(*tensors: Tensor) -> Any:
        inputs = [x.detach().requires_grad_() if x.is_floating_point() else x for x in tensors]
        results = function(*inputs)
        for _ in range(order):
            values = [y for y in (results if isinstance(results, tuple) else (results,)) if y.requires_grad]
            wanted = [x for x in inputs if x.requires_grad]
            found = torch.autograd.grad(
                [y.square().sum() for y in values], wanted, create_graph=True, allow_unused=True
            )
            results = tuple(g for g in found if g is not None)
        return results

    graph = make_fx(derivative, tracing_mode="symbolic")(*tensors)
    val = next(node.meta["val"] for node in graph.graph.nodes if isinstance(node.meta.get("val"), Tensor))
    env = val.fake_mode.shape_env
    replaced = {f"{symbol} = {value}" for symbol, value in env.replacements.items() if not value.free_symbols}
    return replaced | {str(guard.expr) for guard in env.guards if _has_large_number(guard.expr)}


def _has_large_number(expression: Any) -> bool:
    return any(abs(number) > 1000 for number in expression.atoms() if number.is_Integer)


def sample_of(case: Case) -> tuple[Any, ...]:
    """The first sample with two rows or more, in which no size is 0 or 1, which are constants anyway."""
    for sample in case.samples:
        args = sample.args("cpu", torch.float32)
        tensors = [x for x in args if isinstance(x, Tensor)]
        if not sample.large and tensors[0].dim() > 1 and all(n > 2 for x in tensors for n in x.shape):
            return args
    raise AssertionError(f"{case.name} has no such sample")


@pytest.mark.parametrize("case", CASES)
def test_every_operator(case: Case) -> None:
    """The second derivative, which traces the forward and the first one too."""
    args = sample_of(case)
    at = [k for k, x in enumerate(args) if isinstance(x, Tensor)]

    def of_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*tensors: Tensor) -> Any:
            given = dict(zip(at, tensors, strict=True))
            # A tuple is normalized_shape, whose numbers would be constants.
            return function(
                *(given.get(k, tensors[0].shape[-len(x) :] if isinstance(x, tuple) else x) for k, x in enumerate(args))
            )

        return call

    tensors = tuple(args[k] for k in at)
    found = constants(of_tensors(case.function), tensors, 2)
    assert not found or found <= constants(of_tensors(case.plain), tensors, 2)


mean_square = kit.reduction("mean_square(x)", map="x * x", reduce="a + b", post="a / n")
product_and_sine = kit.elementwise("product_and_sine(x, y)", "x * y + sin(y)")


def test_ops_of_the_kit() -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    assert not constants(lambda x: mean_square(x, dim=-1), (x,), 2)
    assert not constants(product_and_sine, (x, y), 2)


def test_length_of_a_row_is_symbolic() -> None:
    def gradient(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(mean_square(x, dim=-1).sum(), x)[0]

    traced = make_fx(gradient, tracing_mode="symbolic")(torch.randn(3, 4))
    x = torch.randn(5, 7)
    torch.testing.assert_close(traced(x), 2 * x / 7)


class Head(torch.nn.Module):
    def __init__(self, op: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.op, self.options = op, options
        self.weight = torch.nn.Parameter(torch.randn(CLASSES, FEATURES))

    def forward(self, x: Tensor, target: Tensor) -> Any:
        return self.op(x, self.weight, target, **self.options)


def batch(rows: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, FEATURES), torch.randint(CLASSES, (rows,))


HEADS = {
    "linear_cross_entropy": (fastops.linear_cross_entropy, {}),
    "each row": (fastops.linear_cross_entropy, {"reduction": "none", "save": "none"}),
    "linear_log_prob": (fastops.linear_log_prob, {"entropy": True}),
}


@pytest.mark.parametrize("dim", [Dim.DYNAMIC, Dim.AUTO], ids=str)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_export(head: str, strict: bool, dim: Any) -> None:
    module = Head(*HEADS[head])
    program = torch.export.export(module, batch(9), dynamic_shapes=({0: dim}, {0: dim}), strict=strict)
    for rows in (1, 4, 33):
        args = batch(rows)
        torch.testing.assert_close(program.module()(*args), module(*args))


def test_dynamic_package(tmp_path: Path) -> None:
    """An AOTInductor package of any number of rows."""
    module = Head(*HEADS["linear_cross_entropy"]).requires_grad_(False)
    rows = {0: Dim.DYNAMIC}
    program = torch.export.export(module, batch(9), dynamic_shapes=(rows, rows))
    path = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "loss.pt2"))
    package = torch._inductor.aoti_load_package(path)
    for count in (2, 9, 33):
        args = batch(count)
        torch.testing.assert_close(package(*args), module(*args))
