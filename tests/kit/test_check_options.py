"""kit.check: keyword arguments, gradients and references that are given, and what is right however it looks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from checked_ops import memory_order, sample, square, wrong_from
from torch import Tensor

from fastops import kit

# Of x rounded, and a derivative that rounding has not.
STRAIGHT_THROUGH: dict[str, Any] = {
    "op": kit.op(
        "kit_test::round_through(Tensor x) -> Tensor", reference=lambda x: x.round(), backward=lambda grad: grad.clone()
    ),
    "elementwise": kit.elementwise("round_through(x)", "round(x)", backward="grad"),
}


@pytest.mark.parametrize("op", STRAIGHT_THROUGH.values(), ids=STRAIGHT_THROUGH)
def test_given_gradients(op: Any) -> None:
    with pytest.raises(kit.CheckFailed, match="by finite differences"):
        kit.check(op, sample)
    assert not kit.check(op, sample, gradient=lambda x: x).failed
    report = kit.check(op, sample, gradient="given")
    assert {outcome.title: outcome.status for outcome in report.outcomes}["gradient"] == "skip"
    with pytest.raises(kit.CheckFailed, match=r"gradient= must return outputs of shapes \[\[2, 3\]\], got \[\[\]\]"):
        kit.check(op, sample, gradient=lambda x: x.sum())
    with pytest.raises(kit.CheckFailed, match=r"gradient, round_through\(.*must be 2.* by finite differences, got 1"):
        kit.check(op, sample, gradient=lambda x: 2 * x)


def test_a_given_gradient_is_tried_in_every_mode() -> None:
    wrong = kit.op(
        "kit_test::round_through(Tensor x) -> Tensor",
        reference=lambda x: x.round(),
        backward=lambda grad: memory_order(grad).sqrt() * grad.sign(),
    )
    with pytest.raises(kit.CheckFailed) as raised:
        kit.check(wrong, sample, gradient="given")
    assert "strided gradients" in raised.value.report.titles("FAIL")


def test_a_given_gradient_is_tried_in_other_sizes() -> None:
    wrong = kit.op(
        "kit_test::round_through(Tensor x) -> Tensor",
        reference=lambda x: x.round(),
        backward=lambda grad: grad + 0.01 * (grad.numel() > 99),
    )
    with pytest.raises(kit.CheckFailed, match=r"other sizes, .*gradient of argument 0, float64, with 64 in place of 2"):
        kit.check(wrong, sample, gradient=lambda x: x)


def test_keyword_arguments() -> None:
    swish = kit.elementwise("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
    report = kit.check(swish, sample, kwargs={"beta": 2.0})
    assert report.outcomes[0].call == "swish(float32[2, 3] cpu, beta=2.0)"
    scale = kit.op(
        "kit_test::scale(Tensor x, *, Tensor by, float a=2.0) -> Tensor",
        reference=lambda x, by, a: x * by * a,
        backward=lambda grad, x, by, a: (grad * by * a, grad * x * (a if a < 3 else 1.001 * a)),
    )
    kit.check(scale, sample, kwargs={"a": 2.5, "by": sample.flip(0)})
    with pytest.raises(kit.CheckFailed, match=r"of argument by must be .* by finite differences"):
        kit.check(scale, sample, kwargs={"a": 3.5, "by": sample.flip(0)})


ROWS = {"0-d": "it has rows"}


def rows(x: Tensor, y: Tensor) -> Tensor:
    if x.dim() != 2 or y.dim() != 1:
        raise ValueError("[rows] expected a matrix and a vector")
    return x + y[:, None]


def test_samples_that_share_sizes() -> None:
    """One without elements has none in all of them."""
    report = kit.check(rows, (sample, torch.tensor([1.0, 2.0])), unsupported=ROWS)
    assert "gives [0, 3]" in {outcome.text for outcome in report.outcomes}

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        if not x.numel():
            raise RuntimeError("nothing to do")
        return rows(x, y)

    wrong = kit.op("kit_test::rows(Tensor x, Tensor y) -> Tensor", cpu=kernel, reference=rows)
    with pytest.raises(kit.CheckFailed) as raised:
        kit.check(wrong, (sample, torch.tensor([1.0, 2.0])), unsupported=ROWS)
    assert raised.value.report.titles("FAIL") == {"empty"}


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (torch.nn.functional.layer_norm, (sample, (3,), torch.tensor([0.5, 1.5, -1.0]))),
        (torch.nn.functional.embedding, (torch.tensor([0, 2, 1]), torch.randn(4, 5))),
        (torch.matmul, (sample, sample.t())),
        (lambda x: x.max(-1), (sample,)),
        (lambda x: x.sort(0), (sample,)),
        (torch.log, (torch.tensor([1e-6, 0.5, 1000.0]),)),
        (lambda x: torch.sin(300 * x.double()).to(x.dtype), (sample,)),
        (torch.relu, (torch.tensor([5e-4, -3e-4]),)),
        (lambda x: 1e-12 * x, (sample,)),
        (lambda x: 1e12 * x, (sample,)),
        (lambda x: x * x.new_zeros(()), (sample,)),
        (torch.nn.functional.silu, (torch.linspace(-3, 3, 300),)),
    ],
)
def test_what_is_right_is_no_failure(op: Any, args: tuple[Any, ...]) -> None:
    """Of the properties about which a check that asks for much could be wrong."""
    try:
        failed = kit.check(op, args).failed
    except kit.CheckFailed as error:
        failed = error.report.failed
    asked = {"other sizes", "NaN and infinity", "gradient", "second gradient", "frozen inputs", "empty", "vmap"}
    assert not asked & {outcome.title for outcome in failed}, failed


def test_arguments_that_cannot_be_understood() -> None:
    for options, message in (
        ({"gradient": "straight"}, r"gradient= expected a function or 'given', got 'straight'"),
        ({"reference": 1}, r"reference= expected a function, got int"),
        ({"kwargs": {1: 2}}, r"kwargs= expected names of arguments, got \[1\]"),
    ):
        with pytest.raises(kit.KitError, match=message):
            kit.check(square(), sample, **options)


def test_a_reference_of_the_callers() -> None:
    def squared(x: Tensor) -> Tensor:
        return wrong_from(256)(x)

    kit.check(square(cpu=wrong_from(256), reference=None, backward=None), sample, unsupported={"gradient": "none"})
    with pytest.raises(kit.CheckFailed, match="output 0, float64, with 257 in place of 2"):
        kit.check(squared, sample, reference=lambda x: x * x)
