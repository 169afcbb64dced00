"""Each rule of the row engine on a GPU: values against float64, and a row's bits however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fastops import _C
from fastops._plan import Facts, card_here

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}
WIDTHS = {"bf16": 8, "f16": 8, "f32": 4, "f64": 2}
RULES = _C.plan_rules()["row"]


@pytest.fixture
def card(cuda: torch.device) -> Facts:
    facts = card_here()[1]
    assert facts is not None
    return facts


def lengths(rule: int, dtype: str) -> tuple[int, ...]:
    """The rule's longest row, and ones that are not whole vectors; of the last rules several parts."""
    up_to, width = RULES[rule]["up to"], WIDTHS[dtype]
    vectors = up_to if up_to < 2**40 else 3 * RULES[rule]["threads"] * RULES[rule]["each"] + 40
    return vectors * width, vectors * width - 1, vectors * width - width - 3


def softmax(log: bool) -> Callable[[Tensor, Tensor, Tensor], tuple[Any, Any]]:
    def run(x: Tensor, grad: Tensor, target: Tensor) -> tuple[Any, Any]:
        name = "log_softmax" if log else "softmax"
        y = getattr(torch.ops.fastops, name)(x)
        found = y, getattr(torch.ops.fastops, f"{name}_backward")(grad, y)
        wide, g = y.double(), grad.double()
        true = getattr(torch, name)(x.double(), -1)
        gradient = g - wide.exp() * g.sum(-1, keepdim=True) if log else wide * (g - (g * wide).sum(-1, keepdim=True))
        return found, (true, gradient)

    return run


def likelihood(smoothing: float) -> Callable[[Tensor, Tensor, Tensor], tuple[Any, Any]]:
    def run(x: Tensor, grad: Tensor, target: Tensor) -> tuple[Any, Any]:
        op, one = torch.ops.fastops, grad[:, 0].contiguous()
        loss, lse, total = op.cross_entropy(x, target, None, 0, -100, smoothing)
        gradient = op.cross_entropy_backward(one, None, x, target, lse, total, None, 0, -100, smoothing)
        leaf = x.double().requires_grad_()
        true = F.cross_entropy(leaf, target, reduction="none", label_smoothing=smoothing)
        return (loss, gradient), (true.detach(), torch.autograd.grad(true, leaf, one.double())[0])

    return run


RUNS = {
    "softmax": (("softmax", "softmax_backward"), softmax(False)),
    "log_softmax": (("softmax", "softmax_backward"), softmax(True)),
    "cross_entropy": (("likelihood", "likelihood_backward"), likelihood(0.0)),
    "smoothed": (("likelihood", "likelihood_backward"), likelihood(0.1)),
}


@pytest.mark.parametrize("rule", range(len(RULES)))
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rule(rule: int, name: str, dtype: str, card: Facts, cuda: torch.device) -> None:
    ops, run = RUNS[name]
    if not set(ops) & set(RULES[rule]["op"]):
        pytest.skip("a rule of other operators")
    torch.manual_seed(rule)
    for n in lengths(rule, dtype):
        first: Any = None
        kernels = set()
        # By cluster, by one block; more rows than blocks of short rows have.
        for rows in (300, 2 * card[0], 40, 5, 1) if n > 1000 else (1030, 7, 1):
            plans = [_C.plan_row(op, dtype, dtype, rows, n, card) for op in ops]
            assert rule in [plan["rule"] for plan in plans]
            kernels |= {(plan["kernel"], plan["blocks"]) for plan in plans}
            if first is None:
                x = 3 * torch.randn(rows, n, device=cuda, dtype=DTYPES[dtype])
                grad, target = torch.randn_like(x), torch.randint(n, (rows,), device=cuda)
            found, true = run(x[:rows], grad[:rows], target[:rows])
            for ours, truth in zip(found, true, strict=True):
                eps = torch.finfo(ours.dtype).eps
                scale = float(truth.abs().max())
                torch.testing.assert_close(ours.double(), truth, rtol=8 * eps, atol=4 * eps * max(scale, 1e-3))
            first = first or found
            for ours, all_rows in zip(found, first, strict=True):
                assert torch.equal(ours, all_rows[:rows]), (n, rows)
        if name == "cross_entropy" and RULES[rule]["up to"] > 2**40 and dtype != "f64" and card[4] >= 8:
            assert {kernel for kernel, _ in kernels} >= {"parts by cluster", "parts in turn"}
