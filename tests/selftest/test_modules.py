"""The selftest's tables of modules."""

from __future__ import annotations

from fastops import nn
from fastops.integrations import kernels
from fastops.selftest import integrated
from fastops.selftest.modules import GATES, MODULES


def test_every_module_is_compared() -> None:
    compared = {as_.module.__name__ for as_ in MODULES.values()}
    assert compared | {"GatedMLP", "RotaryEmbedding"} == {*nn.__all__}
    assert {*GATES} == {"swiglu", "geglu", "reglu", "glu"}


def test_every_layer_for_hugging_faces_kernels_is_compared() -> None:
    compared = [name for layers in integrated.LAYERS.values() for name in layers]
    assert sorted(compared) == sorted(kernels.mapping())
