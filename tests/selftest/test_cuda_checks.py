"""What the checks of a GPU find: rows at another's distance, what ran before, and indices of 32 bits."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from fastops.cases import Case, RawCall, by_name
from fastops.selftest import cuda_checks
from fastops.selftest import many_numbers as many
from fastops.selftest.checks import NOT_CHECKED, layouts
from fastops.selftest.cuda_checks import after_others
from fastops.selftest.many_numbers import many_numbers
from fastops.selftest.reach import _apart
from fastops.selftest.target import Path, Target


def called_by(case: Case, call: type[RawCall]) -> Case:
    return dataclasses.replace(case, raw=lambda make, rows, n: [call(**vars(each)) for each in case.raw(make, rows, n)])


def test_each_tensor_has_its_own_distance() -> None:
    x, y, weight = torch.randn(5, 8), torch.randn(5, 8), torch.randn(8)
    for more, strides in ((16, (12, 16)), (1, (9, 10))):
        args = _apart(RawCall("add_rms_norm", (x, y, weight, 1, 1e-5, 0.0), shared=(2,)), more).args
        assert torch.equal(args[0], x)
        assert torch.equal(args[1], y)
        assert args[2] is weight
        assert (args[0].stride(0), args[1].stride(0)) == strides


class ByWhatRanBefore(RawCall):
    """A sum over rows has another last digit behind a sum of shorter rows."""

    lengths = (0, 0)  # the last one, and another before it

    def __call__(self) -> tuple[Tensor, ...]:
        found = super().__call__()
        if not self.op.endswith("_backward") or not found[1].numel():
            return found
        sums, (last, before) = found[1], self.lengths
        if sums.numel() != last:
            last, before = ByWhatRanBefore.lengths = sums.numel(), last
        return found[0], sums.nextafter(sums + 1) if before < last else sums, *found[2:]


def test_what_ran_before(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_checks, "_LONG", (16, 32, 64))
    for call, right in ((RawCall, True), (ByWhatRanBefore, False)):
        case = called_by(by_name()["rms_norm"], call)
        (outcome,) = after_others(Target(case, torch.float32, Path(device, device.type, best=True), quick=True))
        assert outcome.ok is right, outcome


class BehindThe32ndBit(RawCall):
    """Of more numbers than 2^31 the last ones are not written."""

    def __call__(self) -> tuple[Tensor, ...]:
        (y,) = super().__call__()
        y.view(-1)[1 << 31 :] = 0
        return (y,)


def test_more_numbers_than_32_bits_count(cuda: torch.device) -> None:
    for call, right in ((RawCall, True), (BehindThe32ndBit, False)):
        case = called_by(by_name()["square"], call)
        (outcome,) = many_numbers(Target(case, torch.bfloat16, Path(cuda, "cuda", best=True), quick=False))
        if outcome.detail.startswith(NOT_CHECKED):
            pytest.skip(outcome.detail)
        assert outcome.ok is right, outcome


def test_no_memory_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a virtual GPU: the check says why it says nothing."""

    def refused(device: torch.device) -> None:
        raise OSError("cuMemAddressReserve has returned 801")

    monkeypatch.setattr(many, "DriverMemory", refused)
    target = Target(by_name()["square"], torch.bfloat16, Path(torch.device("cpu"), "cuda", best=True), quick=False)
    (outcome,) = many_numbers(target)
    assert outcome.ok
    assert outcome.detail == f"{NOT_CHECKED} cuMemAddressReserve has returned 801"


def test_tensors_of_one_shape_alike() -> None:
    """An op that takes what lies alike for dense."""

    class Dense(RawCall):
        def __call__(self) -> tuple[Tensor, ...]:
            x, y = self.args[:2]
            alike = x.stride() == y.stride()
            return (x.as_strided(x.shape, (x.shape[1], 1)) + y if alike else x + y,)

    for call, right in ((RawCall, True), (Dense, False)):
        case = dataclasses.replace(
            by_name()["axpby"],
            raw=lambda make, rows, n, call=call: [call("axpby", (make(rows, n), make(rows, n), 1, 1))],
        )
        (outcome,) = layouts(Target(case, torch.float32, Path(torch.device("cpu"), "cuda", best=True), quick=True))
        assert outcome.ok is right, outcome
    assert outcome.detail == "axpby with odd rows of [0, 1]"
