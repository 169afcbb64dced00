"""The selftest's table of modules."""

from __future__ import annotations

from fastops import nn
from fastops.selftest.modules import GATES, MODULES


def test_every_module_is_compared() -> None:
    compared = {as_.module.__name__ for as_ in MODULES.values()}
    assert compared | {"GatedMLP", "RotaryEmbedding"} == {*nn.__all__}
    assert {*GATES} == {"swiglu", "geglu", "reglu", "glu"}
