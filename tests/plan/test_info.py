"""What runs, as people and programs ask for it: fastops.info --plan and capabilities().plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import fastops
from fastops import _plan, info

OPS = _plan.OPS
SIZES = {"linear": "64x768x1024"}
SIZES |= dict.fromkeys(("linear_cross_entropy", "linear_log_prob"), "8192x2048x128256")


def size_of(op: str) -> str:
    return SIZES.get(op, "8192x4096")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("card", [*_plan.CARDS, "cpu", None])
def test_every_op_has_a_plan_on_every_card(
    op: str, backward: bool, card: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--plan", op, "bf16", size_of(op), *(["--card", card] if card else []), *["--backward"] * backward]
    assert info.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{op} {'backward' if backward else 'forward'} on ")
    assert "  kernel " in said
    assert "  because " in said
    assert info.main([*arguments, "--json"]) == 0
    as_data = json.loads(capsys.readouterr().out)
    assert as_data["op"] == op
    assert f" {as_data['kernel']}\n" in said


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("backward", [False, True])
def test_every_op_has_tables(op: str, backward: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert info.main(["--plan", op, *["--backward"] * backward]) == 0
    said = capsys.readouterr().out
    for name, rules in _plan.tables_of(op, backward).items():
        assert f"{name}\nrule " in said
        assert all(rule["why"] and rule["why"] in said for rule in rules)


def test_what_a_linear_loss_keeps() -> None:
    """Of more logits than it keeps the first slices'; the rest is multiplied again."""
    whole, part = (
        _plan.plan("linear_cross_entropy", "bf16", (rows, 4096, 262144), "h100", backward=True)
        for rows in (8192, 65536)
    )
    assert whole.kernel == "logits kept"
    assert whole.details["products"] == "2, 0 of them again"
    assert part.kernel == "some logits kept"
    assert part.details["logits kept"].startswith("of 65536 of 262144 classes")


@pytest.mark.parametrize("op", [*_plan.NORMS, *_plan.ROW_OPS])
@pytest.mark.parametrize("backward", [False, True])
def test_an_op_sees_its_own_rules_alone(op: str, backward: bool) -> None:
    """A residual has no rules of its own in the row table, a loss in float64 has; a norm's backward is elsewhere."""
    if op in _plan.NORMS and backward:
        (rules,) = _plan.tables_of(op, backward).values()
        norm, residual = _plan.NORMS[op]
        assert all(norm in rule["norm"] and ("no", "yes")[residual] in rule["residual"] for rule in rules)
        return
    names = {_plan.row_name(op, backward, dtype) for dtype in _plan.DTYPES}
    expected = [number for number, rule in enumerate(fastops._C.plan_rules()["row"]) if names & {*rule["op"]}]
    assert [rule["number"] for rule in _plan.tables_of(op, backward)["row"]] == expected
    said = _plan.text_of(op, backward)
    numbers = [line.split()[0] for line in said.splitlines()[2:] if line[0] != " "]
    assert numbers == list(map(str, expected))


def test_on_cards_with_and_without_clusters() -> None:
    with_clusters, without = (_plan.plan("layer_norm", "bf16", (4096, 65536), card) for card in ("h100", "a100"))
    assert with_clusters.kernel == "parts by cluster"
    assert str(with_clusters.details["team"]).endswith(" threads, a cluster")
    assert without.kernel == "parts in turn"
    assert str(without.details["team"]).endswith(" threads of a block")
    for found in (with_clusters, without):
        assert str(found.details["parts"]).split()[0] != "1"


@pytest.mark.parametrize(("n", "width"), [(4096, 8), (4100, 4), (4099, 2), (61, 2)])
def test_how_a_row_is_read(n: int, width: int) -> None:
    """A vector has so many numbers of the row, which depends on its length alone."""
    details = _plan.plan("rms_norm", "bf16", (4096, n), "h100").details
    assert str(details["each"]).endswith(f" of {width} numbers a thread")


@pytest.mark.parametrize("backward", [False, True])
def test_parameters_of_float32_change_no_plan(backward: bool) -> None:
    for n in (300, 4096, 16384, 20000):
        plans = [
            _plan.plan("layer_norm", "bf16", (4096, n), "h100", backward=backward, parameter=parameter)
            for parameter in ("bf16", "f32")
        ]
        assert plans[0] == plans[1]


def test_a_program_asks_capabilities() -> None:
    found = fastops.capabilities().plan("rms_norm", torch.bfloat16, (4096, 20000), card="h200")
    assert (found.kernel, found.table, found.backward, found.card) == ("parts by cluster", "row", False, "h200")
    assert found.why == fastops._C.plan_rules()["row"][found.rule]["why"]
    here = fastops.capabilities().plan("rms_norm", torch.float32, (3, 5), backward=True)
    assert (here.card == "cpu") is bool(fastops.capabilities().no_gpu)
    assert here.backward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norm", "bf16", "8x8"], "op must be one of layer_norm, rms_norm, "),
        (["norm"], "op must be one of layer_norm, rms_norm, "),
        (["layer_norm", "int8", "8x8"], "dtype must be one of f16, bf16, f32, f64, got 'int8'"),
        (["layer_norm", "bf16", "8"], "layer_norm's size must be rowsxn, got '8'"),
        (["layer_norm", "bf16", "8x0"], "layer_norm's size must be rowsxn, got '8x0'"),
        (["linear", "bf16", "8x8"], "linear's size must be rowsxfeaturesxoutputs, got '8x8'"),
        (["layer_norm", "bf16"], "--plan takes OP, or OP DTYPE ROWSxN, got layer_norm bf16"),
        (["layer_norm", "bf16", "8x8", "--card", "k80"], "card must be b200, "),
        (["layer_norm", "f32", "8x8", "--card", "t4", "--parameter", "bf16"], "parameters must be of the row's dtype"),
        (["layer_norm", "f32", "8x8", "--card", "cpu", "--parameter", "int8"], "parameter is for norms, and one of "),
        (["relu", "f32", "8x8", "--card", "t4", "--parameter", "f32"], "parameter is for norms, and one of "),
        (["layer_norm", "--card", "t4"], "--card and --parameter are for a problem"),
        (["rms_norm", "bf16", "8x9000000000000000000", "--card", "h100"], "a size must be 1 to 2^40"),
        (["square", "f32", "9999999999x9999999999", "--card", "h100"], "at most 2^50 numbers"),
        (["square", "f32", "1x99999999999999999999999", "--card", "cpu"], "a size must be 1 to 2^40"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        info.main(["--plan", *arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_what_belongs_to_a_plan_needs_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        info.main(["--card", "t4"])
    assert "are for --plan" in capsys.readouterr().err


@pytest.mark.parametrize("given", [("layer_norm", torch.int8, (3, 4)), ("layer_norm", torch.float32, (3,))], ids=str)
def test_errors_of_a_program(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^\[plan\] "):
        fastops.capabilities().plan(*given)
