"""Operators, what they are called with, and which of its dimensions split without a word between processes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from processes import Function, numbers
from torch import Tensor

import fastops

B, S, H = 5, 6, 8  # 5 is shared out unevenly
CLASSES = 12


class Case(NamedTuple):
    name: str
    function: Function  # of the tensors that are spread, then those that each process has
    spread: tuple[Tensor, ...]
    whole: tuple[Tensor, ...] = ()
    free: tuple[int, ...] = (0, 1)  # dimensions of the first tensor, split with no collective
    sums: int = 0  # of ``whole``, the first so many have gradients, which are sums over what is split


def x(seed: int = 0, *shape: int) -> Tensor:
    return numbers(shape or (B, S, H), seed)


w, b = x(1, H), x(2, H)
HEADS, HEADS_OF_K = 4, 2
q, k = x(3, B, HEADS, S, H), x(4, B, HEADS_OF_K, S, H)
q_tokens_first, k_tokens_first = (t.transpose(1, 2).contiguous() for t in (q, k))
cos, sin = x(5, S, H), x(6, S, H)
positions = torch.randperm(S, generator=torch.Generator().manual_seed(0))
matrix, of_outputs = x(7, CLASSES, H), x(8, CLASSES)
state = 4


def _norms() -> list[Case]:
    return [
        Case("rms_norm", lambda x, w: fastops.rms_norm(x, (H,), w), (x(),), (w,), sums=1),
        Case("rms_norm of two dimensions", lambda x: fastops.rms_norm(x, (S, H)), (x(),), free=(0,)),
        Case(
            "rms_norm with an offset", lambda x, w: fastops.rms_norm(x, (H,), w, 0.1, weight_offset=1.0), (x(),), (w,)
        ),
        Case("layer_norm", lambda x, w, b: fastops.layer_norm(x, (H,), w, b), (x(),), (w, b), sums=2),
        Case("layer_norm without affine", lambda x: fastops.layer_norm(x, (H,)), (x(),)),
        Case("add_rms_norm", lambda x, r, w: fastops.add_rms_norm(x, r, (H,), w), (x(), x(9)), (w,), sums=1),
        Case("add_layer_norm", lambda *t: fastops.add_layer_norm(*t[:2], (H,), *t[2:]), (x(), x(9)), (w, b), sums=2),
    ]


def _elementwise() -> list[Case]:
    every = (0, 1, 2)
    scale = x(10, B, S)
    of_rows = "with a scale of rows"
    return [
        Case("square", fastops.square, (x(),), free=every),
        Case("relu", fastops.relu, (x(),), free=every),
        Case("sigmoid", fastops.sigmoid, (x(),), free=every),
        Case("axpby", lambda x, y: fastops.axpby(x, y, 2.0, -3.0), (x(), x(9)), free=every),
        Case(
            "axpby that broadcasts", lambda x, y: fastops.axpby(x, y, 2.0, -3.0), (x(),), (x(11, S, 1),), free=(0, 1, 2)
        ),
        Case("swiglu", lambda g, u: fastops.swiglu(g, u, alpha=1.7, limit=1.0), (x(), x(9)), free=every),
        Case("swiglu of both", lambda x: fastops.swiglu(x), (x(),)),
        Case("geglu along tokens", lambda x: fastops.geglu(x, dim=1), (x(),), free=(0, 2)),
        Case("reglu", lambda g, u: fastops.reglu(g, u), (x(), x(9)), free=every),
        Case("glu by turns", lambda x: fastops.glu(x, interleaved=True), (x(),)),
        Case(f"swiglu {of_rows}", lambda g, u, s: fastops.swiglu(g, u, row_scale=s), (x(), x(9)), (scale,), every),
    ]


def _rows() -> list[Case]:
    target = torch.randint(0, CLASSES, (B, S), generator=torch.Generator().manual_seed(0))
    target[0, 1] = -100
    logits = x(12, B, S, CLASSES)
    return [
        Case("softmax", lambda x: fastops.softmax(x, -1, scale=2.0), (x(),)),
        Case("softmax of tokens", lambda x: fastops.softmax(x, 1), (x(),), free=(0, 2)),
        Case("log_softmax", lambda x: fastops.log_softmax(x, 2), (x(),)),
        Case("log_prob", lambda x, y: fastops.log_prob(x, y), (logits,), (target,)),
        Case("log_prob and entropy", lambda x, y: fastops.log_prob(x, y, entropy=True), (logits,), (target,)),
    ]


def _heads() -> list[Case]:
    def rope(q: Tensor, k: Tensor, *tables: Tensor, **options: Any) -> Any:
        return fastops.rope(q, k, *tables[:2], positions=tables[2] if len(tables) > 2 else None, **options)

    def normed(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, *tables: Tensor) -> Any:
        return fastops.qk_norm_rope(q, k, q_weight, k_weight, *tables)

    of_both = (q, k)
    return [
        Case("rope", rope, of_both, (cos, sin), (0, 1, 2)),
        Case("rope with positions", rope, of_both, (cos, sin, positions), (0, 1, 2)),
        Case("rope of q", lambda q, *tables: fastops.rope(q, None, *tables)[0], (q,), (cos, sin), (0, 1, 2)),
        Case("rope of q, k unused", lambda *t: rope(*t)[0], of_both, (cos, sin), (0, 1, 2)),
        Case(
            "rope of tokens first",
            lambda *t: rope(*t, seq_dim=-3),
            (q_tokens_first, k_tokens_first),
            (cos, sin),
            (0, 1, 2),
        ),
        Case("qk_norm_rope", normed, of_both, (w, b, cos, sin), (0, 1, 2), sums=2),
    ]


def _linear() -> list[Case]:
    def cell(gates: Tensor, h: Tensor, c: Tensor, weights: Tensor, bias: Tensor) -> Any:
        return fastops.lltm(gates, weights, bias, h, c)

    even = x(0, 4, S, H)  # torch's product refuses others in several dimensions
    rows = (x(13, B, H), x(14, B, state), x(15, B, state))
    found = [
        Case(f"linear {a}", lambda x, w, b, a=a: fastops.linear(x, w, b, a), (even,), (matrix, of_outputs), sums=2)
        for a in ("relu", "sigmoid", "gelu", "gelu_tanh", "silu")
    ]
    return [*found, Case("lltm", cell, rows, (x(16, 3 * state, state + H), x(17, 3 * state)), (0,), sums=2)]


CASES = (*_norms(), *_elementwise(), *_rows(), *_heads(), *_linear())
