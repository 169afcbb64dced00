"""Sums over rows, the parameters' gradients: of few rows, and in whatever order a GPU takes kernels up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rules import lengths
from torch import Tensor

import fastops
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

HALF, WIDE = torch.bfloat16, torch.float32
SHARED = [n for n in lengths("norm_backward", "16 bytes", dtypes=("bf16",), cards="h100") if 16384 <= n <= 1 << 18]
TYPES = [  # data, weight, bias
    (HALF, HALF, HALF),
    (HALF, WIDE, HALF),
    (HALF, HALF, WIDE),
    (torch.float16, torch.float16, torch.float16),
    (WIDE, WIDE, WIDE),
    (torch.float64, torch.float64, torch.float64),
]


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("types", TYPES, ids=lambda types: " ".join(str(t).removeprefix("torch.") for t in types))
@pytest.mark.parametrize("n", [8, 61, 768, 769, 1500, 4096, 12288, 65536])
@pytest.mark.parametrize("rows", [1, 2, 5, 37])
def test_of_few_rows(name: str, types: tuple[torch.dtype, ...], n: int, rows: int, device: torch.device) -> None:
    count = 2 if name == "layer_norm" else 1
    x, grad = (Make(device, types[0], seed)(rows, n) for seed in (1, 2))
    parameters = [Make(device, dtype, 3)(n) for dtype in types[1 : 1 + count]]

    def gradients(function: Callable[..., Tensor], to: dict[str, Any]) -> tuple[Tensor, ...]:
        leaves = [t.to(**to).detach().requires_grad_() for t in (x, *parameters)]
        out = function(leaves[0], (n,), *leaves[1:], eps=1e-5)
        return torch.autograd.grad(out, leaves, grad.to(**to))

    found = gradients(getattr(fastops, name), {})
    truth = gradients(getattr(formulas, name), {"device": "cpu", "dtype": torch.float64})
    for ours, true, like in zip(found, truth, (x, *parameters), strict=True):
        assert ours.dtype == like.dtype
        assert ulps(ours, true) <= 16


@pytest.mark.parametrize("dtype", [HALF, torch.float16])
@pytest.mark.parametrize("n", SHARED)
@pytest.mark.parametrize("rows", [1, 3, 150])
@pytest.mark.parametrize("weighted", [True, False])
def test_of_rows_that_a_cluster_shares(
    dtype: torch.dtype, n: int, rows: int, weighted: bool, cuda: torch.device
) -> None:
    """More rows than clusters, and fewer: all gradients, some of them alone, each row's bits by itself."""
    ops = torch.ops.fastops
    x, grad = (Make(cuda, dtype, seed)(rows, n) for seed in (1, 2))
    x += 3
    parameters = [Make(cuda, dtype, 3)(n), Make(cuda, dtype, 4)(n)] if weighted else [None, None]
    statistics = ops.layer_norm_forward(x, *parameters)[1]

    def gradients(kept: slice, *needs: bool) -> tuple[Tensor, ...]:
        given = (t[kept].contiguous() for t in (grad, x, statistics))
        found: tuple[Tensor, ...] = ops.layer_norm_backward(*given, *parameters, *needs)
        return found

    every = slice(None)
    leaves = [t.double().requires_grad_() for t in (x, *parameters) if t is not None]
    out = formulas.layer_norm(leaves[0], (n,), *leaves[1:], eps=1e-5)
    truth = torch.autograd.grad(out, leaves, grad.double())
    found = gradients(every, True, weighted, weighted)
    for ours, true in zip(found, truth, strict=False):
        assert ulps(ours, true.cpu()) <= 16
    assert same_bits(gradients(every, True, False, False)[0], found[0])
    for row in {0, rows // 2, rows - 1}:
        assert same_bits(gradients(slice(row, row + 1), True, weighted, weighted)[0], found[0][row : row + 1])
    if weighted:
        for ours, others in zip(gradients(every, False, True, True)[1:], found[1:], strict=True):
            assert same_bits(ours, others)


Call = Callable[[Tensor], tuple[Tensor, ...]]


def layer_norm_backward(rows: int, n: int, like: Tensor) -> Call:
    x, weight = torch.randn(rows, n).to(like), torch.randn(n).to(like)
    statistics = torch.ops.fastops.layer_norm_forward(x, weight)[1]
    return lambda grad: torch.ops.fastops.layer_norm_backward(grad, x, statistics, weight, weight)


def linear_epilogue_backward(rows: int, n: int, like: Tensor) -> Call:
    saved, bias = torch.randn(rows, n).to(like), torch.randn(n).to(like)
    return lambda grad: torch.ops.fastops.linear_epilogue_backward(grad, saved, bias, "gelu", True)


every_call = pytest.mark.parametrize("make", [layer_norm_backward, linear_epilogue_backward])
every_size = pytest.mark.parametrize(
    ("rows", "n"), [(1, 12288), (2, 769), (37, 769), (37, 12288), (64, 64), (3000, 1024), (500, 40000), (9, 131072)]
)


def gradients_in_turn(rows: int, n: int, like: Tensor) -> list[Tensor]:
    return [torch.full((rows, n), scale).to(like) * torch.randn(rows, n).to(like) for scale in (1.0, 1e3, 1e-3)]


@every_call
@every_size
@pytest.mark.parametrize("side", [False, True], ids=["default stream", "side stream"])
def test_one_call_after_the_other(make: Any, rows: int, n: int, side: bool, cuda: torch.device) -> None:
    """In recycled memory, without a pause: sums that did not wait for their rows would be those of the call before."""
    like = torch.empty(0, dtype=HALF, device=cuda)
    call, grads = make(rows, n, like), gradients_in_turn(rows, n, like)
    expected = []
    for grad in grads:
        expected.append([t.clone() for t in call(grad)])
        torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream() if side else torch.cuda.default_stream()):
        torch.cuda._sleep(10_000_000)  # so that the calls queue up
        wrong = torch.zeros((), dtype=torch.int64, device=cuda)
        for _ in range(10):
            for grad, before in zip(grads, expected, strict=True):
                for found, right in zip(call(grad), before, strict=True):
                    wrong += (found != right).sum()
        for grad, before in zip(grads, expected, strict=True):
            late = torch.empty_like(grad)
            torch.cuda._sleep(1_000_000)
            late.copy_(grad)  # the kernel just before
            for found, right in zip(call(late), before, strict=True):
                wrong += (found != right).sum()
    torch.cuda.synchronize()
    assert wrong.item() == 0


@every_call
@every_size
def test_in_a_cuda_graph(make: Any, rows: int, n: int, cuda: torch.device) -> None:
    like = torch.empty(0, dtype=HALF, device=cuda)
    call, grads = make(rows, n, like), gradients_in_turn(rows, n, like)
    expected = [[t.clone() for t in call(grad)] for grad in grads]
    static = torch.zeros_like(grads[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            outputs = call(static)
    for _ in range(5):
        for grad, before in zip(grads, expected, strict=True):
            static.copy_(grad)
            graph.replay()
            assert all(same_bits(a, b) for a, b in zip(outputs, before, strict=True))
