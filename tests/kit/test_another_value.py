"""torch.compile of the kit's ops at a second value of dim=, a number or a shape, of which Dynamo makes symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from fastops import kit

power = kit.reduction("again_power(x, *, s=1.0)", map="s * x * x", post="sqrt(a)")
peak = kit.reduction("again_peak(x, *, s=1.0)", map="s * x", reduce="max(a, b)")
given = kit.reduction("again_given(x)", map="x * x", post="sqrt(a)", backward="grad * x / out")
swish = kit.elementwise("again_swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
ramp = kit.elementwise("again_ramp(x, *, beta=1.0)", "x > 0 ? beta * x : 0", backward="x > 0 ? beta * grad : 0")
scale = kit.op("again::scale(Tensor x, float a=2.0) -> Tensor", reference=lambda x, a: x * a)

X = torch.rand(4, 5, 6, dtype=torch.float64) + 0.5
SHAPES = [X, X[:3], torch.rand(7, 5, 6).double(), torch.rand(6, 7, 8).double(), torch.rand(2, 9, 3).double()]


def compiled(f: Callable[..., Tensor], calls: Sequence[tuple[Any, ...]], backward: bool) -> int:
    """How many graphs; values and gradients are compared with the plain call's."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    g = torch.compile(f, backend=counter, fullgraph=True)
    for x, *more in calls:
        ours, theirs = (x.clone().requires_grad_(backward) for _ in range(2))
        got, expected = g(ours, *more), f(theirs, *more)
        torch.testing.assert_close(got, expected)
        if backward:
            torch.testing.assert_close(
                *(torch.autograd.grad(y.sum(), x)[0] for y, x in ((got, ours), (expected, theirs)))
            )
    return counter.frame_count


BACKWARD = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
REDUCTIONS = pytest.mark.parametrize("op", [power, peak, given], ids=lambda op: op.name)


@BACKWARD
@REDUCTIONS
def test_dims(op: kit.Reduce, backward: bool) -> None:
    dims = [0, 1, 2, -1, -2, 1]
    assert compiled(lambda x, d: op(x, dim=d), [(X, d) for d in dims], backward) <= len(set(dims))


@BACKWARD
@REDUCTIONS
def test_several_dims(op: kit.Reduce, backward: bool) -> None:
    dims = [(0,), (0, 1), (1, 2), (-1, 0), [0, 2], None, (1, 2)]
    assert compiled(lambda x, d: op(x, dim=d), [(X, d) for d in dims], backward) <= 6


@BACKWARD
@REDUCTIONS
def test_keepdim(op: kit.Reduce, backward: bool) -> None:
    assert compiled(lambda x, k: op(x, dim=1, keepdim=k), [(X, k) for k in (True, False, True)], backward) == 2


CHANGING: dict[str, Callable[..., Tensor]] = {
    "power": lambda x, b: power(x, dim=1, s=b),
    "peak": lambda x, b: peak(x, dim=-1, s=b),
    "swish": lambda x, b: swish(x, beta=b),
    "ramp": lambda x, b: ramp(x, beta=b),
}


@BACKWARD
@pytest.mark.parametrize("name", CHANGING)
def test_numbers_that_change_are_one_graph(name: str, backward: bool) -> None:
    assert compiled(CHANGING[name], [(X, 1 + k / 7) for k in range(12)], backward) == 2
    assert compiled(CHANGING[name], [(X, k + 1) for k in range(12)], backward) == 2


@pytest.mark.parametrize("name", CHANGING)
def test_a_size_is_a_number(name: str) -> None:
    f = CHANGING[name]
    for backward in (False, True):
        assert compiled(lambda x: f(x, x.shape[0]), [(x,) for x in SHAPES], backward) <= 3


@BACKWARD
@pytest.mark.parametrize("name", CHANGING)
def test_shapes(name: str, backward: bool) -> None:
    assert compiled(lambda x: CHANGING[name](x, 1.5), [(x,) for x in SHAPES], backward) <= 3


@pytest.mark.parametrize("value", [float("inf"), 1e300, -0.0])
def test_numbers_at_the_edge(value: float) -> None:
    x = torch.rand(5) + 0.5
    torch._dynamo.reset()
    f = torch.compile(lambda x, b: ramp(x, beta=b), backend="aot_eager", fullgraph=True)
    for beta in (1.0, 2.0, value):
        got, expected = f(x, beta), ramp(x, beta=beta)
        assert torch.equal(got, expected)
        assert torch.equal(got.signbit(), expected.signbit())


@BACKWARD
def test_of_an_op_a_graph_for_each(backward: bool) -> None:
    """As for every op of torch.library's with a float: values are right, and nothing breaks the graph."""
    compiled(lambda x, a: scale(x, a), [(X, 1.0), (X, 2.0), (X, 3)], backward)
