"""Nested and sparse tensors: what torch's op of the same function does, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops
from fastops import kit

formula = kit.elementwise("formula(x, y)", "x * sin(y)")
W, B, M = torch.randn(8), torch.randn(8), torch.randn(4, 8)

PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (fastops.relu, torch.relu),
    "sigmoid": (fastops.sigmoid, torch.sigmoid),
    "square": (fastops.square, torch.square),
    "axpby": (lambda x: fastops.axpby(x, x, 2.0, 3.0), lambda x: 2 * x + 3 * x),
    "axpby of dense and nested": (lambda x: fastops.axpby(B, x, 2.0, 3.0), lambda x: 2 * B + 3 * x),
    "layer_norm": (lambda x: fastops.layer_norm(x, (8,), W, B), lambda x: F.layer_norm(x, (8,), W, B)),
    "rms_norm": (lambda x: fastops.rms_norm(x, (8,), W), lambda x: F.rms_norm(x, (8,), W)),
    "rms_norm with an offset": (
        lambda x: fastops.rms_norm(x, (8,), W, weight_offset=1.0),
        lambda x: F.rms_norm(x, (8,), W + 1),
    ),
    "add_layer_norm": (
        lambda x: fastops.add_layer_norm(x, x, (8,), W, B)[0],
        lambda x: F.layer_norm(x + x, (8,), W, B),
    ),
    "add_rms_norm": (lambda x: fastops.add_rms_norm(x, x, (8,), W)[0], lambda x: F.rms_norm(x + x, (8,), W)),
    "softmax": (lambda x: fastops.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "softmax to another dtype": (
        lambda x: fastops.softmax(x, -1, torch.float64),
        lambda x: torch.softmax(x, -1, dtype=torch.float64),
    ),
    "log_softmax with a scale": (
        lambda x: fastops.log_softmax(x, -1, scale=2.0),
        lambda x: torch.log_softmax(2 * x, -1),
    ),
    "swiglu of one": (lambda x: fastops.swiglu(x), lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]),
    "geglu of two": (lambda x: fastops.geglu(x, x.sin()), lambda x: F.gelu(x) * x.sin()),
    "linear": (lambda x: fastops.linear(x, M), lambda x: F.linear(x, M)),
    "linear with relu": (lambda x: fastops.linear(x, M, M[:, 0], "relu"), lambda x: F.relu(F.linear(x, M, M[:, 0]))),
    "linear with gelu": (lambda x: fastops.linear(x, M, None, "gelu"), lambda x: F.gelu(F.linear(x, M))),
}


def rows() -> Tensor:
    torch.manual_seed(0)
    dense = torch.randn(6, 8)
    return dense * (dense.abs() > 0.5)


MAKE: dict[str, Callable[[], Tensor]] = {
    "jagged": lambda: torch.nested.nested_tensor([*rows().split([2, 4])], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([*rows().split([2, 4])]),
    "COO": lambda: rows().to_sparse(),
    "CSR": lambda: rows().to_sparse_csr(),
    "CSC": lambda: rows().to_sparse_csc(),
    "BSR": lambda: rows().to_sparse_bsr((2, 2)),
}


def dense(x: Tensor) -> Tensor:
    return torch.cat([*x.unbind()]) if x.is_nested else x.to_dense() if x.layout is not torch.strided else x


def outcome(f: Callable[[Tensor], Tensor], kind: str, learns: bool) -> list[Tensor] | type[Exception]:
    x = MAKE[kind]().requires_grad_(learns)
    try:
        y = f(x)
        found = [dense(y)]
        if learns:
            # Of all elements: of those that are not there the gradients differ, and torch's sums of CSR know but these.
            gradient = torch.ones_like(y) if kind != "COO" else torch.ones(y.shape)
            found += [dense(g) for g in torch.autograd.grad(y, x, gradient)]
        return [t.detach() for t in found]
    except (NotImplementedError, RuntimeError) as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")  # of torch: prototypes
@pytest.mark.parametrize("learns", [True, False], ids=["with a gradient", "without"])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("name", PAIRS)
def test_as_torchs_op(name: str, kind: str, learns: bool) -> None:
    ours, torchs = (outcome(f, kind, learns) for f in PAIRS[name])
    if isinstance(torchs, type):  # torch has none either, and says so
        assert isinstance(ours, type)
        return
    assert not isinstance(ours, type), ours
    torch.testing.assert_close(ours, torchs)


def test_most_of_them_work() -> None:
    """The test above proves nothing where torch itself fails."""
    work = sum(isinstance(outcome(torchs, kind, True), list) for _, torchs in PAIRS.values() for kind in MAKE)
    assert work >= 30


def test_a_formula_of_jagged_tensors() -> None:
    """In torch's functions; other layouts are refused by name (tests/kit/test_written.py)."""
    for x, y in ((MAKE["jagged"](), B), (B, MAKE["jagged"]())):
        assert torch.equal(formula(x, y).values(), (x * torch.sin(y)).values())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", PAIRS)
def test_jagged_compiles(name: str, backend: str) -> None:
    ours, _ = PAIRS[name]
    torch._dynamo.reset()
    x = MAKE["jagged"]()
    torch.testing.assert_close(torch.compile(ours, backend=backend)(x).values(), ours(x).values())
