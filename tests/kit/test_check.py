"""kit.check passes right ops, and finds each way of being wrong."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from checked_ops import (
    centred,
    memory_order,
    overwrite,
    product,
    refuse,
    sample,
    square,
    wrong_alone,
    wrong_from,
)
from torch import Tensor

import fastops
from fastops import kit

calls = itertools.count()


def restless(x: Tensor) -> Tensor:
    return x * x * (1 + 1e-7 * next(calls))


def batches_mixed(info: Any, dims: Any, x: Tensor) -> tuple[Tensor, int]:
    return x.sum(dims[0]) * x.movedim(dims[0], 0), 0


double = kit.op(
    "kit_test::double(Tensor x) -> Tensor", cpu=lambda x: 2 * x, reference=lambda x: 2 * x, vmap=batches_mixed
)

twice_with_a_wrong_gradient = kit.op(
    "kit_test::twice_with_a_wrong_gradient(Tensor x) -> Tensor",
    cpu=lambda x: 2 * x,
    backward=lambda grad: 2.001 * grad,
)

# What is wrong, and the property that tells.
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no result": (lambda: square(cpu=lambda x: None), "call"),
    "input returned": (lambda: square(cpu=lambda x: x), "call"),
    "error in the call": (lambda: square(cpu=refuse), "call"),
    "input overwritten": (lambda: square(cpu=overwrite), "inputs stay as they are"),
    "view of the input": (lambda: lambda x: x.view(-1), "inputs stay as they are"),
    "no two results alike": (lambda: square(cpu=restless), "equal inputs, equal bits"),
    "values 0.05 % off": (lambda: square(cpu=lambda x: x * x * 1.0005), "other sizes"),
    "the tail of a vector": (lambda: square(cpu=lambda x: wrong_from(x.numel() // 8 * 8 or 99)(x)), "other sizes"),
    "the second block": (lambda: square(cpu=wrong_from(256)), "other sizes"),
    "the last block": (lambda: square(cpu=wrong_from(4096)), "other sizes"),
    "an error beyond a size": (lambda: square(cpu=lambda x: x * x if x.numel() < 99 else 1 / 0), "other sizes"),
    "gradient beyond a size": (
        lambda: square(backward=lambda grad, x: 2 * x * grad + (x.numel() > 256)),
        "other sizes",
    ),
    "float32 beyond a size": (
        lambda: square(cpu=lambda x: wrong_from(64, 1.0)(x) if x.dtype == torch.float32 else x * x, reference=None),
        "other sizes",
    ),
    "NaN lost": (lambda: square(cpu=lambda x: (x * x).nan_to_num(0, posinf=float("inf"))), "NaN and infinity"),
    "infinity lost": (lambda: square(cpu=lambda x: (x * x).clamp(max=1e30)), "NaN and infinity"),
    "NaN lost in a half": (
        lambda: square(cpu=lambda x: x.nan_to_num(0) ** 2 if x.dtype == torch.bfloat16 else x * x, reference=None),
        "NaN and infinity",
    ),
    "a frozen input": (lambda: product(backward=wrong_alone), "frozen inputs"),
    "gradient 0.05 % off": (lambda: square(backward=lambda grad, x: 2.001 * x * grad), "gradient"),
    "second gradient 0.05 % off": (
        lambda: square(backward=lambda grad, x: twice_with_a_wrong_gradient(x) * grad),
        "second gradient",
    ),
    "half sums": (lambda: square(cpu=lambda x: (x * 1000 + x * x) - x * 1000), "dtypes"),
    "a dtype refused": (lambda: square(cpu=lambda x: refuse() if x.dtype == torch.float16 else x * x), "dtypes"),
    "gradient": (lambda: square(backward=lambda grad, x: x * grad), "gradient"),
    "error in the gradient": (lambda: square(backward=lambda grad, x: refuse()), "gradient"),
    "no gradient": (lambda: lambda x: (x * x).detach(), "gradient"),
    "second gradient": (
        lambda: square(backward=lambda grad, x: 2 * x.detach() * grad, reference=None),
        "second gradient",
    ),
    "forward mode": (lambda: wrong_forward_mode, "forward mode"),
    "error in forward mode": (lambda: no_forward_mode, "forward mode"),
    "strided input misread": (lambda: square(cpu=memory_order), "strided inputs"),
    "strided gradient misread": (
        lambda: square(backward=lambda grad, x: 2 * x * memory_order(grad).sqrt() * grad.sign()),
        "strided gradients",
    ),
    "expanded gradient misread": (
        lambda: square(backward=lambda grad, x: 2 * x * (grad if any(grad.stride()) else 0 * grad)),
        "expanded gradients",
    ),
    "empty": (lambda: square(cpu=lambda x: x * x if x.numel() else x.new_empty(1)), "empty"),
    "error of empty": (lambda: square(cpu=lambda x: x * x if x.numel() else refuse()), "empty"),
    "0-d": (lambda: square(cpu=lambda x: x * x if x.dim() else x + 1), "0-d"),
    "error of 0-d": (lambda: square(cpu=lambda x: x * x if x.dim() else refuse()), "0-d"),
    "batches mixed": (lambda: square(vmap=batches_mixed), "vmap"),
    "elements that meet": (lambda: centred("elementwise"), "vmap"),
    "error in vmap": (lambda: square(vmap=refuse), "vmap"),
    "batches of gradients mixed": (
        lambda: square(backward=lambda grad, x: double(x) * grad),
        "vmap of the gradient",
    ),
    "shape of the fake": (lambda: square(fake=lambda x: x.new_empty(7)), "fake"),
    "dtype of the fake": (lambda: square(fake=lambda x: torch.empty_like(x, dtype=torch.int64)), "fake"),
    "strides of the fake": (lambda: square(fake=lambda x: x.new_empty(x.shape[::-1]).t()), "fake"),
    "schema": (lambda: square(cpu=overwrite), "opcheck"),
    "graph break": (lambda: graph_break, "torch.compile"),
    "another result compiled": (lambda: other_when_compiled, "torch.compile"),
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


class NoForwardMode(WrongForwardMode):
    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        raise kit.KitError("[no_forward_mode] forward mode is not written")


def no_forward_mode(x: Tensor) -> Tensor:
    return NoForwardMode.apply(x)


def other_when_compiled(x: Tensor) -> Tensor:
    return x * x + 1 if torch.compiler.is_compiling() else x * x


def graph_break(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()
    return x * x


@pytest.mark.parametrize("fault", WRONG)
def test_every_fault_is_found(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, title = WRONG[fault]
    op = make()
    with pytest.raises(kit.CheckFailed) as raised:
        kit.check(op, (sample, sample.flip(0)) if getattr(op, "name", "") == "product" else sample)
    assert title in raised.value.report.titles("FAIL")
    assert f"  FAIL     {title}  " in capsys.readouterr().out


def test_every_property_can_fail() -> None:
    right = kit.check(square(), sample).outcomes
    assert {title for _, title in WRONG.values()} == {o.title for o in right if "cpu" in o.call}


WRONG_ON_CUDA: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "another result than on the CPU": (lambda x: x * x + 1e-3, "CPU against CUDA"),
    "another stream": (lambda x: on_the_default_stream(x), "side stream"),
    "waits for the device": (lambda x: x * x if x.sum().item() < 1e9 else x, "CUDA graph"),
    "another result under capture": (
        lambda x: x * x + torch.cuda.is_current_stream_capturing(),
        "CUDA graph",
    ),
    "always the first GPU": (lambda x: x.to("cuda:0") ** 2, "second GPU"),
}


def on_the_default_stream(x: Tensor) -> Tensor:
    with torch.cuda.stream(torch.cuda.default_stream()):
        return x * x


@pytest.mark.parametrize("fault", WRONG_ON_CUDA)
def test_every_fault_on_a_gpu_is_found(fault: str, cuda: torch.device) -> None:
    kernel, title = WRONG_ON_CUDA[fault]
    if title == "second GPU" and torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    with pytest.raises(kit.CheckFailed) as raised:
        kit.check(square(cuda=kernel), sample.to(cuda))
    assert title in raised.value.report.titles("FAIL")


def test_a_right_op_passes_and_the_report_is_what_was_printed(capsys: pytest.CaptureFixture[str]) -> None:
    report = kit.check(square(), sample, (torch.tensor(0.5),))
    out = capsys.readouterr().out
    assert out.startswith("square(float32[2, 3] cpu)\n  ok       call                      gives float32[2, 3] cpu\n")
    assert str(report) in out
    assert not report.failed
    assert not report.of("refused")
    assert "empty" in report.titles("skip")
    gradient = next(outcome for outcome in report.outcomes if outcome.title == "gradient")
    assert gradient.status == "ok"
    assert "finite differences" in gradient.text
    if not torch.cuda.is_available():
        assert out.endswith("no GPU here: CPU against CUDA, side stream, CUDA graph, second GPU were not tried\n")
        assert len(report.outcomes) == 2 * 20


def test_the_worst_error_is_told() -> None:
    nearly = square(vmap=lambda info, dims, x: ((x * x * (1 + 1e-6)).movedim(dims[0], 0), 0))
    (line,) = [o.text for o in kit.check(nearly, sample).outcomes if o.title == "vmap"][:1]
    (worst,) = re.findall(r"worst error (\S+)", line)
    assert 3e-6 < float(worst) < 6e-6


def test_what_an_op_was_given_no_function_for_is_refused() -> None:
    report = kit.check(kit.op("kit_test::ceil(Tensor x) -> Tensor", cpu=torch.ceil, cuda=torch.ceil), sample)
    refused = {outcome.title: outcome.text for outcome in report.of("refused")}
    assert set(refused) == {"gradient", "forward mode"}
    assert refused["gradient"].startswith("needs backward= or reference= ([ceil] has no derivative")
    assert not report.failed


def test_a_refusal_must_be_documented_and_name_the_op() -> None:
    def flat(x: Tensor) -> Tensor:
        if not x.dim():
            raise ValueError("[flat] x must have dimensions, got none")
        return x * x

    def silent(x: Tensor) -> Tensor:
        if not x.dim():
            raise ValueError("no")
        return x * x

    reason = {"0-d": "rows have a length"}
    with pytest.raises(kit.CheckFailed, match=r"0-d, flat\(.*x must have dimensions"):
        kit.check(flat, sample)
    assert kit.check(flat, sample, unsupported=reason).titles("refused") == {"0-d"}
    with pytest.raises(kit.CheckFailed, match=r"must be refused by an error that begins with \[silent\]"):
        kit.check(silent, sample, unsupported=reason)
    with pytest.raises(kit.KitError, match=r"unsupported= expected titles of call, .*, got 'scalars'"):
        kit.check(square(), sample, unsupported={"scalars": ""})


def test_dtypes_are_those_that_were_named() -> None:
    def single(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise kit.KitError(f"[square] x must be float32, got {x.dtype}")
        return x * x

    only = square(cpu=single, cuda=single, reference=None)
    with pytest.raises(kit.CheckFailed, match=r"x must be float32, got torch\.float64"):
        kit.check(only, sample)
    report = kit.check(only, sample, dtypes=[torch.float32])
    lines = {outcome.title: outcome for outcome in report.outcomes}
    assert lines["dtypes"].text == "float64 refused, float32 runs, bfloat16 refused, float16 refused"
    assert lines["gradient"].status == "skip"
    with pytest.raises(kit.CheckFailed, match="the op takes float64, which is none of its dtypes="):
        kit.check(square(), sample, dtypes=[torch.float32])


@pytest.mark.parametrize("name", ["square", "sigmoid", "axpby"])
def test_built_in_functions_pass(name: str) -> None:
    kit.check(getattr(fastops, name), (sample, sample + 1) if name == "axpby" else sample)


def test_a_sample_is_needed() -> None:
    with pytest.raises(kit.KitError, match="at least one sample"):
        kit.check(square())
    with pytest.raises(kit.KitError, match=r"expected a Tensor, or a tuple with one, as each sample, got \(1,\)"):
        kit.check(square(), 1)


def test_right_ops_pass() -> None:
    kit.check(product(), (sample, sample.flip(0)))
    kit.check(centred(None), sample)


def test_the_message_names_place_and_values() -> None:
    with pytest.raises(kit.CheckFailed) as raised:
        kit.check(square(backward=lambda grad, x: 2.001 * x * grad), sample)
    text = {outcome.title: outcome.text for outcome in raised.value.report.failed}
    assert re.search(
        r"the derivative of element \[0, 0\] of output 0 by element \[0, 0\] of argument 0 must be 0\.60000\d* "
        r"by finite differences, got 0\.60030",
        text["gradient"],
    )
    assert re.search(r"gradient of argument 0, float64, the sample: must be .* at \[0, 0\], got ", text["other sizes"])
    with pytest.raises(kit.CheckFailed, match=r"where only argument [01] requires grad"):
        kit.check(product(backward=wrong_alone), (sample, sample.flip(0)))
    with pytest.raises(kit.CheckFailed, match=r"NaN at 0 of argument 0, float64: output 0 must have nan, got 0\.0"):
        kit.check(square(cpu=lambda x: (x * x).nan_to_num(0, posinf=float("inf"))), sample)
    with pytest.raises(kit.CheckFailed, match=r"of shapes \[64, 3\], which the reference takes: ZeroDivisionError"):
        kit.check(square(cpu=lambda x: x * x if x.numel() < 99 else 1 / 0), sample)
    with pytest.raises(kit.CheckFailed, match=r"output 0, float64, with 1000 in place of 2: must be .*, got "):
        kit.check(square(cpu=wrong_from(1500)), sample)
