"""The selftest's modules for fastops.patch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fastops
from fastops.cases import by_name
from fastops.patching.activations import OPERATORS
from fastops.patching.finders import FINDERS
from fastops.patching.gated import UNITS
from fastops.selftest import patched
from fastops.selftest.target import CHOSEN, Path, Target

PATH = Path(torch.device("cpu"), "cpu", CHOSEN, best=True)


@pytest.mark.filterwarnings("ignore:.*nothing was swapped")
def test_every_kind_has_a_module() -> None:
    assert {*(name for name, *_ in OPERATORS.values())} <= {*patched.PLAIN}
    assert {name.partition("(")[0] for name in UNITS} <= {*patched.PLAIN}
    made = {name: make() for name, make in patched.PLAIN.items()}
    for kind in FINDERS:
        reports = (fastops.patch(module, only=[kind], loss=kind == "loss", dry_run=True) for module in made.values())
        assert any(report.swapped for report in reports), kind


def test_a_module_that_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(model: Any, **options: Any) -> Any:
        return fastops.patch(model, only=["norms"])

    monkeypatch.setattr(patched, "patch", left)
    with pytest.warns(UserWarning, match="nothing"):
        (outcome,) = patched.patched(Target(by_name()["relu"], torch.float32, PATH, quick=True))
    assert not outcome.ok
    assert "another number of modules swapped" in outcome.detail
    assert "no operator of ours ran" in outcome.detail
