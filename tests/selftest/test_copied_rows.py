"""Rows that kernels read where they lie, and an op that copies them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fastops.cases import RawCall, by_name
from fastops.selftest.kept import copies
from fastops.selftest.target import Path, Target


class OfCopies(RawCall):
    def __call__(self) -> tuple[Tensor, ...]:
        return (torch.ops.fastops.softmax(self.args[0].contiguous(), *self.args[1:]),)


def test_copies_of_rows() -> None:
    case = by_name()["softmax"]
    for call, shape, right in (
        (RawCall, (16, 96), True),
        (RawCall, (16, 96, 3), True),
        (OfCopies, (16, 96), False),
        (OfCopies, (16, 96, 3), False),
    ):
        broken = dataclasses.replace(
            case, raw=lambda make, rows, n, call=call, shape=shape: [call("softmax", (make(*shape), 1, 1.0))]
        )
        (outcome,) = copies(Target(broken, torch.float32, Path(torch.device("cpu"), "cpu"), quick=True))
        assert outcome.ok is right, (shape, outcome)
