"""Fixtures of the tests of losses of a linear layer."""

from __future__ import annotations

from typing import Any

import pytest
from linear_losses import WIDTH

from fastops.families import linear_operands
from fastops.families.slices import Slices


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of few classes, some of which are kept by "auto"."""

    def few(save: str, rows: int, features: int, classes: int, *others: Any) -> Slices:
        return Slices(WIDTH, {"none": 0, "auto": min(2 * WIDTH, classes), "logits": classes}[save])

    monkeypatch.setattr(linear_operands, "slices", few)


@pytest.fixture(params=["cross_entropy", "log_prob"])
def op(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def half_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float16 on CPUs too, which are slow at it."""
    monkeypatch.setattr(linear_operands, "multiplied_in", lambda dtype, device: dtype)
