"""Each rule of the row engine on a GPU: values against float64, and a row's bits however many rows there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rules import SIZES, RowProblem, bands, rows_of_schedules, rules
from torch import Tensor

from fastops._plan import DTYPES, NORMS, Facts, card_here
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.bits import same_bits

EPS = 1e-3
RULES = rules("row")
SMOOTHED, BESIDE_FLOAT32 = "smoothed cross_entropy", " beside float32"
FAR = 100.0  # distance of every third row's mean from 0, so that layer_norm sums these rows twice

# A function of (x, gradient or residual, target) that compares its results with float64 and returns them.
Run = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]


@pytest.fixture
def card(cuda: torch.device) -> Facts:
    facts = card_here()[1]
    assert facts is not None
    return facts


def check(ours: Tensor, truth: Tensor, relative: float = 8, absolute: float = 4, least: float = 1e-3) -> None:
    """Compare a result with float64, by tolerances in units of eps.

    The absolute tolerance is multiplied by the largest number of the truth, or by `least`, if this is larger.
    """
    eps = torch.finfo(ours.dtype).eps
    scale = max(float(truth.abs().max()), least)
    torch.testing.assert_close(ours.double(), truth, rtol=relative * eps, atol=absolute * eps * scale)


def softmax(log: bool) -> Run:
    def run(x: Tensor, grad: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        name = "log_softmax" if log else "softmax"
        y = getattr(torch.ops.fastops, name)(x)
        gradient = getattr(torch.ops.fastops, f"{name}_backward")(grad, y)
        wide, g = y.double(), grad.double()
        check(y, getattr(torch, name)(x.double(), -1))
        check(gradient, g - wide.exp() * g.sum(-1, keepdim=True) if log else wide * (g - (g * wide).sum(-1)[:, None]))
        return y, gradient

    return run


def likelihood(smoothing: float) -> Run:
    def run(x: Tensor, grad: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        op, one = torch.ops.fastops, grad[:, 0].contiguous()
        loss, lse, total = op.cross_entropy(x, target, None, 0, -100, smoothing)
        gradient = op.cross_entropy_backward(one, None, x, target, lse, total, None, 0, -100, smoothing)
        wide, g = x.double(), one.double()[:, None]
        check(loss, F.cross_entropy(wide, target, reduction="none", label_smoothing=smoothing))
        wanted = torch.full_like(wide, smoothing / x.shape[-1]).scatter_add_(
            1, target[:, None], torch.full_like(g, 1 - smoothing)
        )
        check(gradient, g * (wide.softmax(-1) - wanted), least=float(g.abs().max()))
        return loss, lse, gradient

    return run


def norm(name: str, parameter: torch.dtype | None) -> Run:
    """Return a norm's run; parameter: the dtype of its weight and bias, None for that of the rows."""
    layer, residual = NORMS[name][0] == "layer", NORMS[name][1]

    def run(x: Tensor, added: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[-1]
        make = Make(x.device, parameter or x.dtype, seed=n)
        parameters = [make(n).to(x.dtype).to(parameter or x.dtype) for _ in range(1 + layer)]
        forward = getattr(torch.ops.fastops, f"{name}_forward")
        results: tuple[Tensor, ...] = forward(x, *[added] * residual, *parameters, eps=EPS)
        total = x + added if residual else x
        assert not residual or same_bits(results[1], total)
        wide = total.double()
        formula = formulas.layer_norm if layer else formulas.rms_norm
        truth = formula(wide, (n,), *(p.double() for p in parameters), eps=EPS)
        check(results[0], truth, *((0.55, 0.05) if x.element_size() == 2 else (8, 16)))
        variance = wide.var(-1, unbiased=False) if layer else wide.square().mean(-1)
        check(results[-1].view(len(x), -1)[:, -1], (variance + EPS).rsqrt(), relative=16)
        return results

    return run


RUNS: dict[str, Run] = {
    "softmax": softmax(log=False),
    "log_softmax": softmax(log=True),
    "cross_entropy": likelihood(0.0),
    SMOOTHED: likelihood(0.1),
    **{name: norm(name, None) for name in NORMS},
    **{name + BESIDE_FLOAT32: norm(name, torch.float32) for name in NORMS},
}


def table_ops(name: str, dtype: str) -> tuple[str, ...]:
    """Return the operators of the table that a run goes through."""
    op = name.removesuffix(BESIDE_FLOAT32)
    if op in NORMS:
        return (f"{NORMS[op][0]}_norm",)
    if op.endswith("softmax"):
        return ("softmax", "softmax_backward")
    general = "_general" if dtype == "f64" or name == SMOOTHED else ""
    return f"likelihood{general}", f"likelihood{general}_backward"


CASES = [
    (rule, name, dtype)
    for rule in range(len(RULES))
    for name in RUNS
    for dtype in SIZES
    if set(table_ops(name, dtype)) & set(RULES[rule]["op"])
    and not (name.endswith(BESIDE_FLOAT32) and SIZES[dtype] != 2)
]


@pytest.mark.parametrize(("rule", "name", "dtype"), CASES)
def test_rule(rule: int, name: str, dtype: str, card: Facts, cuda: torch.device) -> None:
    """Each schedule of the rule, with the rule's shortest and longest rows."""
    problems = [RowProblem(op, dtype, dtype) for op in table_ops(name, dtype)]
    lengths = {(problem, n) for problem in problems for n in bands(problem, card).get(rule, ())}
    if not lengths:
        pytest.skip("a rule for other dtypes or cards")
    torch.manual_seed(rule)
    for problem, n in sorted(lengths, key=lambda pair: pair[1]):
        # Blocks of several rows get some that are not full; blocks of one row are more than the card runs at once.
        counts = sorted({*rows_of_schedules(problem, n, card).values(), 1, 7, 1030 if n <= 1000 else 300})
        assert {problem.plan(rows, n, card)["rule"] for rows in counts} == {rule}
        most = counts.pop()
        x = 3 * torch.randn(most, n, device=cuda, dtype=DTYPES[dtype])
        if problem.op.endswith("norm"):
            x[::3] += FAR
        tensors = x, torch.randn_like(x), torch.randint(n, (most,), device=cuda)
        together = RUNS[name](*tensors)
        parts = [slice(None), *map(slice, counts), *(slice(row, row + 1) for row in (1, most // 2, most - 1))]
        for part in parts:
            for ours, all_rows in zip(RUNS[name](*(t[part] for t in tensors)), together, strict=True):
                assert same_bits(ours, all_rows[part]), (n, part)
