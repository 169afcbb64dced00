"""kit.check passes right ops, and finds each way of being wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from fastops import kit

sample = torch.tensor([[0.3, -1.2, 0.7], [2.1, -0.4, 1.6]])


def square(**changes: Any) -> Any:
    """A right op, with changes."""
    parts: dict[str, Any] = {
        "cpu": lambda x: x * x,
        "cuda": lambda x: x * x,
        "reference": lambda x: x * x,
        "backward": lambda grad, x: 2 * x * grad,
    }
    return kit.op("kit_test::square(Tensor x) -> Tensor", **parts | changes)


def overwrite(x: Tensor) -> Tensor:
    result = x * x
    x.zero_()
    return result


def memory_order(x: Tensor) -> Tensor:
    """Reads memory as if it were contiguous."""
    flat = x.as_strided((x.numel(),), (1,)) if x.numel() else x.flatten()
    return (flat * flat).view(x.shape)


calls = itertools.count()


def restless(x: Tensor) -> Tensor:
    return x * x * (1 + 1e-7 * next(calls))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "gradient": (lambda: square(backward=lambda grad, x: x * grad), "gradient"),
    "second gradient": (
        lambda: square(backward=lambda grad, x: 2 * x.detach() * grad, reference=None),
        "second gradient",
    ),
    "shape of the fake": (lambda: square(fake=lambda x: x.new_empty(7)), "fake"),
    "dtype of the fake": (lambda: square(fake=lambda x: torch.empty_like(x, dtype=torch.int64)), "fake"),
    "strides of the fake": (lambda: square(fake=lambda x: x.new_empty(x.shape[::-1]).t()), "fake"),
    "input overwritten": (lambda: square(cpu=overwrite), "inputs stay as they are"),
    "input returned": (lambda: square(cpu=lambda x: x), "inputs stay as they are"),
    "no two results alike": (lambda: square(cpu=restless), "equal inputs, equal bits"),
    "strided input misread": (lambda: square(cpu=memory_order), "strided inputs"),
    "strided gradient misread": (
        lambda: square(backward=lambda grad, x: 2 * x * memory_order(grad).sqrt() * grad.sign()),
        "strided gradients",
    ),
    "half sums": (lambda: square(cpu=lambda x: (x * 1000 + x * x) - x * 1000), "dtypes"),
    "batches mixed": (lambda: square(vmap=lambda info, dims, x: (x.sum(0) * x, 0)), "vmap"),
    "forward mode": (lambda: wrong_forward_mode, "forward mode"),
    "0-d": (lambda: square(cpu=lambda x: x * x if x.dim() else x + 1), "0-d"),
    "empty": (lambda: square(cpu=lambda x: x * x if x.numel() else x.new_empty(1)), "empty"),
    "graph break": (lambda: graph_break, "torch.compile"),
}


class WrongForwardMode(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return ctx.saved_tensors[0] * tangent


def wrong_forward_mode(x: Tensor) -> Tensor:
    return WrongForwardMode.apply(x)


def graph_break(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x * x


@pytest.mark.parametrize("fault", WRONG)
def test_every_fault_is_found(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, title = WRONG[fault]
    with pytest.raises(kit.KitError, match=rf"\d+ of \d+ checks failed\n(.*\n)*{re.escape(title)}, on cpu"):
        kit.check(make(), sample)
    assert f"  FAIL  {title}: " in capsys.readouterr().out


def test_another_stream_is_found(cuda: torch.device) -> None:
    def elsewhere(x: Tensor) -> Tensor:
        with torch.cuda.stream(torch.cuda.default_stream()):
            return x * x

    with pytest.raises(kit.KitError, match="side stream"):
        kit.check(square(cuda=elsewhere), sample.to(cuda))


def test_a_right_op_passes_and_the_report_says_what_was_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    kit.check(square(), sample, (torch.tensor(0.5),))
    out = capsys.readouterr().out
    assert out.startswith("square(float32[2, 3] cpu)\n")
    assert "FAIL" not in out
    skipped = [line for line in out.splitlines() if line.startswith("  skip")]
    gpu = [] if torch.cuda.is_available() else ["  skip  CPU against CUDA, side stream, CUDA graph, second GPU: no GPU"]
    assert skipped == ["  skip  empty: a 0-d argument", *gpu]


def test_refusals_are_told_and_are_no_failures(capsys: pytest.CaptureFixture[str]) -> None:
    kit.check(kit.op("kit_test::ceil(Tensor x) -> Tensor", cpu=torch.ceil, cuda=torch.ceil), sample)
    out = capsys.readouterr().out
    assert "  skip  gradient: refused: [ceil] has no derivative" in out
    assert "  skip  forward mode: refused: " in out
    assert "  ok    vmap\n" in out


@pytest.mark.parametrize("name", ["square", "sigmoid", "axpby"])
def test_built_in_functions_pass(name: str) -> None:
    kit.check(getattr(fastops, name), (sample, sample + 1) if name == "axpby" else sample)


def test_a_sample_is_needed() -> None:
    with pytest.raises(kit.KitError, match="at least one sample"):
        kit.check(square())
