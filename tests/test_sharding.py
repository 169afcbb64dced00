"""Rules of sharding as data: each operator has one, and torch gets them when the first DTensor comes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fastops
from fastops import sharding
from fastops._operator import OPERATORS
from fastops.sharding import Call, Output, lazy

# Operators that get no DTensors, and why.
WITHOUT = {
    "relu_mask": "bits lie in the order of a process's memory: DTensors take relu itself",
    "relu_mask_backward": "the same",
    "likelihood_partial": "called with a process's own tensors",
    "likelihood_join": "the same",
    "cross_entropy_merge": "the same",
    "log_prob_merge": "the same",
    "linear_likelihood_partial": "the same",
    "linear_cross_entropy": "called with a process's own tensors by sharded_losses",
    "linear_cross_entropy_backward": "the same",
    "linear_log_prob": "the same",
    "linear_log_prob_backward": "the same",
}


def test_each_operator_has_a_rule() -> None:
    without = {name for name, op in OPERATORS.items() if op.raw not in lazy.RULES}
    assert without == set(WITHOUT)


def test_torch_gets_them_where_it_is_there() -> None:
    code = """
import sys, fastops
from fastops.sharding import lazy
assert "torch.distributed.tensor" not in sys.modules
assert fastops.capabilities().dtensor == "registered when torch.distributed.tensor is there"
from torch.distributed.tensor import DTensor
rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
assert not set(lazy.RULES) & set(rules)
assert fastops.capabilities().dtensor == "registered"
assert set(lazy.RULES) <= set(rules)
late = fastops.kit.elementwise("late(x)", "x * x")
assert late._program.raw in rules
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_why_they_did_not_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_why_not", None)
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", torch)
    monkeypatch.setitem(sys.modules, "fastops.sharding.dtensor", None)
    found = fastops.capabilities().dtensor
    assert found.startswith(f"no rules: PyTorch {torch.__version__} does not take them: ")
    assert not lazy.registered_now()


def call(outputs: int = 1, others: dict[str, object] | None = None, **shapes: tuple[int, ...]) -> Call:
    return Call({name: torch.Size(shape) for name, shape in shapes.items()}, others or {}, outputs)


def test_pointwise() -> None:
    split = sharding.pointwise()(call(2, x=(2, 3, 4), y=(3, 1), z=()))
    assert split.inputs == {"x": (0, 1, 2), "y": (1, None), "z": ()}
    assert split.outputs == [Output((0, 1, 2))] * 2
    assert split.free == [(0,), (1,), (2,)]


def test_rows() -> None:
    rule = sharding.rows(lambda call: len(call.first) - call["dims"], whole=("w",), sums=(1,))
    split = rule(call(2, {"dims": 1}, x=(5, 6, 7), rstd=(5, 6), w=(7,)))
    assert split.inputs == {"x": (0, 1), "rstd": (0, 1)}
    assert split.outputs == [Output((0, 1)), Output((), sums=(0, 1))]
    assert split.free == [(0,), (1,)]


def test_all_but() -> None:
    split = sharding.all_but("dim")(call(1, {"dim": -2}, x=(5, 6, 7)))
    assert split.free == [(0,), (2,)]


@pytest.mark.parametrize(
    ("seq_dim", "names"),
    [(-2, ("batch 0", "heads", "tokens")), (1, ("batch 0", "tokens", "heads")), (0, ("tokens", "batch 0", "heads"))],
)
def test_rope(seq_dim: int, names: tuple[str, ...]) -> None:
    shape = (5, 6, 7, 8)
    tokens = shape[names.index("tokens")]
    batch = shape[names.index("batch 0")]
    given = call(2, {"seq_dim": seq_dim}, q=shape, k=shape, cos=(batch, tokens, 8), sin=(tokens, 8))
    split = lazy.RULES[torch.ops.fastops.rope.default](given)
    assert split.inputs["q"] == names
    assert split.inputs["k"] == tuple("heads of k" if name == "heads" else name for name in names)
    assert split.inputs["cos"] == ("batch 0", "tokens")
    assert split.inputs["sin"] == ("tokens",)
    assert set(split.free) == {("batch 0",), ("tokens",), ("heads", "heads of k"), ("heads",)}
