"""Kernels come onto the card while the one before them ends; results are those of calls one by one all the same.

Behind each other in recycled memory, behind copies and sets, between streams, in CUDA graphs; there, behind our kernels
alone.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fastops
from fastops._driver import probe
from fastops.selftest.bits import same_bits

HALF = torch.bfloat16
# Rows for every kind of kernel: lanes, teams of a block, words, 8 bytes, rings, clusters, parts in turn; few and many.
SIZES = [
    (1, 12288),
    (37, 769),
    (37, 12288),
    (1100, 20480),
    (65, 192),
    (64, 4096),
    (3000, 61),
    (4000, 451),
    (3000, 1500),
    (4000, 1024),
    (2000, 4096),
    (70, 40000),
    (40, 131072),
    (5, 150000),
    (40, 20003),
    (5, 300000),
]
every_size = pytest.mark.parametrize(("rows", "n"), SIZES)
seeds = pytest.mark.parametrize("seed", range(3))

Step = Callable[[Tensor], Tensor]


def steps(n: int, like: Tensor) -> list[Step]:
    """Each from [rows, n] to [rows, n], by one or two kernels; what a step does not return is in it all the same."""
    ops = torch.ops.fastops
    weight, bias = (torch.randn(n).to(like) for _ in range(2))

    def layer_norm_backward(x: Tensor) -> Tensor:
        y, statistics = ops.layer_norm_forward(x, weight, bias)
        grad, of_weight, of_bias = ops.layer_norm_backward(y, x, statistics, weight, bias)
        return grad + of_weight * of_bias.sign()

    def layer_norm_parameters(x: Tensor) -> Tensor:
        y, statistics = ops.layer_norm_forward(x, weight, bias)
        _, of_weight, _ = ops.layer_norm_backward(y, x, statistics, weight, bias, False)
        return ops.axpby(y, of_weight.expand_as(y))

    def rms_norm_backward(x: Tensor) -> Tensor:
        y, rstd = ops.rms_norm_forward(x, weight)
        grad, of_weight = ops.rms_norm_backward(y, x, rstd, weight)
        return grad + of_weight

    def add_norms(x: Tensor) -> Tensor:
        y, total = ops.add_layer_norm(x, x, weight, bias)
        return ops.add_rms_norm(total, y, weight)[0]

    def mask(x: Tensor) -> Tensor:
        y, bits = ops.relu_mask(x)
        return ops.axpby(ops.relu_mask_backward(x, bits, [n, 1]), y, 0.5, -1.0)

    def epilogue_backward(x: Tensor) -> Tensor:
        grad, of_bias = ops.linear_epilogue_backward(x, x, bias, "gelu", True)
        return grad + of_bias

    def cell(x: Tensor) -> Tensor:
        return ops.lltm_cell(torch.cat([x, x, x], 1), torch.cat([bias, bias, bias]), x)[1]

    def cell_backward(x: Tensor) -> Tensor:
        gates, gate_bias = torch.cat([x, x, x], 1), torch.cat([bias, bias, bias])
        of_gates, of_bias, grad = ops.lltm_cell_backward(x, x, gates, gate_bias, x, True)
        return grad + (of_gates + of_bias)[:, : x.shape[1]]

    return [
        lambda x: ops.axpby(ops.square(ops.sigmoid(x)), x, -1.0, 1.0),
        lambda x: ops.axpby(x, x.flip(0), 1.0, 0.5),
        lambda x: ops.square(x.t().contiguous().t()),
        lambda x: ops.layer_norm(x, weight, bias),
        lambda x: ops.rms_norm(x, weight),
        lambda x: ops.linear_epilogue(x, bias, "silu"),
        lambda x: x.clone(),  # a copy between
        lambda x: ops.axpby(torch.zeros_like(x), x, 1.0, 1.0),  # a set between
        layer_norm_backward,
        layer_norm_parameters,
        rms_norm_backward,
        add_norms,
        mask,
        epilogue_backward,
        cell,
        cell_backward,
    ]


def chain_of(n: int, like: Tensor, seed: int) -> list[Step]:
    """All of them twice in some order, and a norm behind each, which keeps the numbers in range."""
    all_steps = steps(n, like)
    chosen = random.Random(seed).sample(2 * all_steps, 2 * len(all_steps))
    return [step for each in chosen for step in (each, lambda x: torch.ops.fastops.layer_norm(x))]


def through(chain: list[Step], x: Tensor, *, one_by_one: bool = False) -> Tensor:
    for step in chain:
        x = step(x)
        if one_by_one:
            torch.cuda.synchronize()
    return x


def inputs(rows: int, n: int, device: torch.device) -> list[Tensor]:
    return [torch.randn(rows, n).to(device, HALF) for _ in range(3)]


@every_size
@seeds
def test_queued_up(rows: int, n: int, seed: int, cuda: torch.device) -> None:
    given = inputs(rows, n, cuda)
    chain = chain_of(n, given[0], seed)
    expected = [through(chain, x, one_by_one=True) for x in given]
    assert all(x.isfinite().all() for x in expected)
    for side in (torch.cuda.default_stream(), torch.cuda.Stream()):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = []
            for x in given:
                torch.cuda._sleep(5_000_000)  # so that they queue up
                found.append(through(chain, x * 1))  # which is written just before
        torch.cuda.synchronize()
        assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))


@every_size
def test_between_streams(rows: int, n: int, cuda: torch.device) -> None:
    """Each step in the other stream of two, which waits for the one before, all memory in use to the end."""
    given = inputs(rows, n, cuda)
    chain = chain_of(n, given[0], 0)
    expected = [through(chain, x, one_by_one=True) for x in given]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for x, right in zip(given, expected, strict=True):
        kept = [x]
        last = torch.cuda.current_stream()
        for k, step in enumerate(chain):
            stream = streams[k % 2]
            stream.wait_stream(last)
            with torch.cuda.stream(stream):
                kept.append(step(kept[-1]))
            last = stream
        torch.cuda.synchronize()
        assert same_bits(kept[-1], right)


@every_size
@seeds
def test_in_a_cuda_graph(rows: int, n: int, seed: int, cuda: torch.device) -> None:
    """With copies and sets as nodes, a branch in another stream, and again right behind itself."""
    given = inputs(rows, n, cuda)
    chain = chain_of(n, given[0], seed)

    def work(x: Tensor) -> Tensor:
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        moved = torch.zeros_like(x)
        moved.copy_(x)
        shared = torch.ops.fastops.sigmoid(moved)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            other = torch.ops.fastops.rms_norm(torch.ops.fastops.square(shared))
        y = through(chain[: len(chain) // 2], shared)
        here.wait_stream(side)
        return through(chain[len(chain) // 2 :], torch.ops.fastops.axpby(y, other))

    expected = []
    for x in given:
        expected.append(work(x))
        torch.cuda.synchronize()
    static = torch.zeros_like(given[0])
    warm = torch.cuda.Stream()
    warm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm):
        work(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work(static)
    for _ in range(3):
        for x, right in zip(given, expected, strict=True):
            static.copy_(x)
            graph.replay()
            graph.replay()
            found = torch.ops.fastops.axpby(out, out, 1.0, 0.0)  # right behind it
            assert same_bits(found, right)


class _Edge(ctypes.Structure):
    """CUgraphEdgeData."""

    _fields_ = [(name, ctypes.c_ubyte) for name in ("from_port", "to_port", "type")] + [("rest", ctypes.c_ubyte * 5)]


def early_edges(work: Callable[[], object]) -> list[bool]:
    """Of each edge of a captured chain, in its order, whether its kernel is launched early."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        kept = work()
    count = ctypes.c_size_t()
    ask = ctypes.CDLL("libcuda.so.1").cuGraphGetEdges_v2
    of = ctypes.c_void_p(graph.raw_cuda_graph())
    assert ask(of, None, None, None, ctypes.byref(count)) == 0
    nodes = ctypes.c_void_p * count.value
    begins, ends, edges = nodes(), nodes(), (_Edge * count.value)()
    assert ask(of, begins, ends, edges, ctypes.byref(count)) == 0
    del kept
    early = {begin: (end, edge.type == 1) for begin, end, edge in zip(begins, ends, edges, strict=True)}
    (node,) = set(begins) - set(ends)
    found = []
    while node in early:
        node, value = early[node]
        found.append(value)
    return found


def test_in_a_cuda_graph_early_behind_ours_alone(cuda: torch.device) -> None:
    if torch.cuda.get_device_capability(cuda) < (9, 0) or tuple(map(int, probe().cuda.split("."))) < (12, 3):
        pytest.skip("needs compute capability 9.0 and a driver for CUDA 12.3")
    ops = torch.ops.fastops
    x = torch.randn(64, 1024, device=cuda, dtype=HALF)
    layer = torch.nn.Linear(1024, 1024, device=cuda, dtype=HALF)

    def forward() -> Tensor:
        return ops.square(ops.relu(torch.neg(ops.layer_norm(ops.square(x)))))

    def backward() -> tuple[Tensor, ...]:  # which autograd's thread launches
        leaf = x.detach().requires_grad_()
        y = fastops.layer_norm(leaf, (1024,))
        return y, *torch.autograd.grad(y, leaf, x)

    def product() -> Tensor:
        return fastops.linear(x, layer.weight, layer.bias, "gelu").square_()

    for work in (forward, backward, product):
        work()
    torch.cuda.synchronize()
    # square, layer_norm early, torch's neg, relu behind it, square early.
    assert early_edges(forward) == [True, False, False, True]
    assert all(early_edges(backward))
    # From torch's product to our pass, and from there to torch's square_.
    assert early_edges(product)[-2:] == [False, False]
