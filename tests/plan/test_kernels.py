"""Every form of the norms' backward on a GPU: its values, and the same bits for a row by each schedule of its rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rules import PROBLEMS, Problem, bands, rows_of_schedules, rules
from torch import Tensor

from fastops._plan import DTYPES, Facts, card_here
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.bits import same_bits

EPS = 1e-3
CHECKED = 8  # rows whose values are compared: the first, the last


@pytest.fixture
def card(cuda: torch.device) -> Facts:
    facts = card_here()[1]
    assert facts is not None
    return facts


def schedules(problem: Problem, n: int, card: Facts) -> Iterator[tuple[int, int]]:
    """Yield each schedule with its fewest rows, and the last one with more, if they are not too much to compare."""
    found = rows_of_schedules(problem, n, card)
    yield from found.items()
    last, rows = max(found.items())
    if n * (more := rows + 2 * card[0] + 3) < 1 << 24:
        yield last, more


def tensors(problem: Problem, rows: int, n: int, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Return three tensors of rows, which repeat the first rows, and the parameters."""
    make = Make(device, DTYPES[problem.dtype], seed=n)
    of_rows = [make(CHECKED, n).repeat(-(-rows // CHECKED), 1)[:rows] for _ in range(3)]
    count = 2 if problem.norm == "layer" else 1
    return of_rows, [make(n).to(DTYPES[problem.parameter]) for _ in range(count)]


def ends(t: Tensor) -> Tensor:
    return torch.cat([t[:CHECKED], t[-CHECKED:]]) if len(t) > 2 * CHECKED else t


def repeats(t: Tensor) -> bool:
    """Return whether every row has the bits of the row that it repeats."""
    of_each = [t[k::CHECKED] for k in range(min(len(t), CHECKED))]
    return all(same_bits(rows.contiguous(), rows[:1].expand_as(rows).contiguous()) for rows in of_each)


def tolerance(problem: Problem) -> dict[str, float]:
    eps = torch.finfo(DTYPES[problem.dtype]).eps
    return {"rtol": 8 * eps, "atol": 16 * eps}


@pytest.mark.parametrize("rule", range(len(rules("norm_backward"))))
def test_backward(rule: int, card: Facts, cuda: torch.device) -> None:
    problems = [(problem, n) for problem in PROBLEMS for n in bands(problem, card).get(rule, ())]
    if not problems:
        pytest.skip("a rule for other cards")
    for problem, n in problems:
        first: Any = None
        for schedule, rows in schedules(problem, n, card):
            plan = problem.plan(rows, n, card)
            assert (plan["rule"], plan["schedule"]) == (rule, schedule)
            (x, grad, grad_sum), parameters = tensors(problem, rows, n, cuda)
            statistics = getattr(torch.ops.fastops, f"{problem.norm}_norm_forward")(x, *parameters, eps=EPS)[1:]
            name = f"{'add_' if problem.residual else ''}{problem.norm}_norm_backward"
            grads = (grad, grad_sum) if problem.residual else (grad,)
            needs = [True] * (1 + len(parameters))
            found = getattr(torch.ops.fastops, name)(*grads, x, *statistics, *parameters, *needs, eps=EPS)
            truth = gradients(problem, x, grad, grad_sum, parameters)
            torch.testing.assert_close(ends(found[0]).double(), ends(truth[0]), **tolerance(problem))
            of_parameters = torch.finfo(DTYPES[problem.parameter]).eps
            exact = 1e-12 if problem.dtype == "f64" else 1e-5  # sums over rows are float32, or float64
            for ours, true in zip(found[1:], truth[1:], strict=True):
                scale = float(true.abs().max())
                torch.testing.assert_close(ours.double(), true, rtol=2 * of_parameters, atol=exact * scale)
            assert repeats(found[0]), (problem, n, rows)
            first = found[0][:1].clone() if first is None else first
            assert same_bits(first, found[0][:1].clone()), (problem, n, rows)


def gradients(
    problem: Problem, x: Tensor, grad: Tensor, grad_sum: Tensor, parameters: list[Tensor]
) -> tuple[Tensor, ...]:
    leaves = [t.double().requires_grad_() for t in (x, *parameters)]
    out = getattr(formulas, f"{problem.norm}_norm")(leaves[0], x.shape[-1:], *leaves[1:], eps=EPS)
    of_input, *others = torch.autograd.grad(out, leaves, grad.double())
    return of_input + grad_sum.double() if problem.residual else of_input, *others
