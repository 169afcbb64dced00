"""Rows that lie far apart, and an op that takes them for neighbours."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from fastops.cases import RawCall, by_name
from fastops.selftest.checks import NOT_CHECKED
from fastops.selftest.far_apart import far_apart
from fastops.selftest.target import Path, Target


class OfNeighbours(RawCall):
    """Takes the distance of rows for their length, as 32 bits of it may be."""

    def __call__(self) -> tuple[Tensor, ...]:
        x = self.args[0]
        return (torch.ops.fastops.square(x.as_strided(x.shape, (x.shape[1], 1))),)


def test_the_distance_of_rows(device: torch.device) -> None:
    case = by_name()["square"]
    path = Path(device, "cuda" if device.type == "cuda" else "cpu")
    for call, right in ((RawCall, True), (OfNeighbours, False)):
        broken = dataclasses.replace(case, raw=lambda make, rows, n, call=call: [call("square", (make(rows, n),))])
        (outcome,) = far_apart(Target(broken, torch.float32, path, quick=True))
        if outcome.detail.startswith(NOT_CHECKED):
            pytest.skip(outcome.detail)
        assert outcome.ok is right, outcome
