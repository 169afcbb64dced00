"""Rows of every rule: a row whose bits depend on how many rows there are is found."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fastops.cases import RawCall, by_name
from fastops.selftest.reach import FEW, rules
from fastops.selftest.target import Path, Target


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
