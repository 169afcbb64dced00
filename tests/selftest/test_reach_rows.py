"""Rows of every rule: a row whose bits depend on how many rows there are is found."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from fastops.cases import Make, RawCall, by_name
from fastops.selftest import reach
from fastops.selftest.bands import STREAMED
from fastops.selftest.reach import FEW, rules
from fastops.selftest.target import Path, Target


@pytest.mark.parametrize("shape", [(3, 5), (150, 150), (1500, 1500)], ids=["few", "of the pool", "larger than it"])
def test_numbers_of_the_pool(shape: tuple[int, int], device: torch.device) -> None:
    """Those of a seed are the same everywhere."""
    places = (device, 0), ("cpu", 0), (device, 1)
    one, again, other = (Make(place, torch.float32, seed)(*shape, shift=2.0) for place, seed in places)
    assert torch.equal(one.cpu(), again)
    assert not torch.equal(one, other)
    assert 0.5 < one.mean() < 3.5


class ByTheNumberOfRows(RawCall):
    """Of many rows the next number, which is within the bound."""

    def __call__(self) -> tuple[Tensor, ...]:
        (y,) = super().__call__()
        return (torch.nextafter(y, y + 1) if len(y) > FEW else y,)


def test_rows_depend_on_nothing_else() -> None:
    case = by_name()["sigmoid"]
    device = torch.device("cpu")
    for call, right in ((RawCall, True), (ByTheNumberOfRows, False)):
        broken = dataclasses.replace(case, raw=lambda make, rows, n, call=call: [call("sigmoid", (make(rows, n),))])
        first, *_ = rules(Target(broken, torch.float32, Path(device, "cpu", best=True), quick=True))
        assert first.ok is right, first
    assert "depends on how many" in first.detail


def chain(rows: Iterable[Tensor]) -> Tensor:
    return functools.reduce(torch.add, rows)


class InChains(RawCall):
    """The weight's gradient is added up one row after the other, each repetition of which rounds alike."""

    left_out = 0

    def __call__(self) -> tuple[Tensor, ...]:
        found = super().__call__()
        if not self.op.endswith("_backward") or found[1].numel() == 0:
            return found
        grad, x, rstd = self.args[:3]
        rows = grad.float() * x * rstd.view(-1, 1)
        rows = rows[self.left_out :] if len(rows) > FEW else rows
        return found[0], chain(chain(part) for part in rows.split(240)).to(found[1].dtype)


class WithoutItsFirst(InChains):
    left_out = 1


def test_sums_of_repeated_rows() -> None:
    case = by_name()["rms_norm"]
    for call, right in ((InChains, True), (WithoutItsFirst, False)):
        raw = lambda make, rows, n, call=call: [call(**vars(each)) for each in case.raw(make, rows, n)]  # noqa: E731
        target = Target(
            dataclasses.replace(case, raw=raw),
            torch.float16,  # with a weight in float32
            Path(torch.device("cpu"), "cpu", best=True),
            quick=True,
        )
        first, *_ = rules(target)
        assert first.ok is right, first


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "cross_entropy", "rms_norm", "swiglu"])
def test_all_calls_go_past_the_caches(name: str, dtype: torch.dtype) -> None:
    """Of whole lines, which stores past the caches ask for; each op, number of results and combination of dtypes."""
    t = Target(by_name()[name], dtype, Path(torch.device("cpu"), "cpu", best=True), quick=False)
    every, past = set(), set()
    for _, bands, each in reach._each_rule(t, reach._bands(t), 0):
        kind = reach.kind_of(each.call)
        every.add(kind)
        past |= {kind} if (STREAMED, True, True) in bands else set()
    assert past == every
