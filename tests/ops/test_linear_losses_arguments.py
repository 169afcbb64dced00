"""linear_cross_entropy and linear_log_prob: arguments that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from linear_losses import (
    CLASSES,
    made,
    outputs_of,
)

import fastops

pytest_plugins = ["linear_fixtures"]
pytestmark = pytest.mark.usefixtures("narrow")


@pytest.mark.parametrize("wrong", [CLASSES, -1])
def test_a_target_that_is_no_class(op: str, wrong: int, device: torch.device) -> None:
    x, w, target, b = made(torch.float32, device)
    target[3] = wrong
    options = {"reduction": "none"} if op == "cross_entropy" else {}
    if device.type == "cpu":
        message = rf"^\[linear_{op}\] target must be 0 to {CLASSES - 1} or ignore_index -100, got {wrong}$"
        with pytest.raises(IndexError, match=message):
            outputs_of(op, x, w, target, b, **options)
    else:
        assert outputs_of(op, x, w, target, b, **options)[0].isnan().nonzero().tolist() == [[3]]


ERRORS: dict[str, tuple[Callable[..., Any], str]] = {
    "features": (lambda x, w, t: (x[:, 1:], w, t), "input must end in linear_weight's features 24, got shape [37, 23]"),
    "weight": (
        lambda x, w, t: (x, w[0], t),
        "linear_weight must have shape [classes, features], classes not 0, got [24]",
    ),
    "empty": (
        lambda x, w, t: (x, w[:0], t),
        "linear_weight must have shape [classes, features], classes not 0, got [0, 24]",
    ),
    "target": (lambda x, w, t: (x, w, t[1:]), "target must have shape [37], got [36]"),
    "target_dtype": (
        lambda x, w, t: (x, w, t.int()),
        "target must have dtype torch.int64 or torch.uint8, got torch.int32",
    ),
    "dtype": (
        lambda x, w, t: (x, w.double(), t),
        "linear_weight must have input's dtype torch.float32, got torch.float64",
    ),
    "bias": (lambda x, w, t: (x, w, t, w[:7, 0]), "linear_bias must have shape [301], got [7]"),
    "save": (lambda x, w, t: (x, w, t, None, "all"), "save must be 'auto', 'logits' or 'none', got 'all'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(op: str, name: str, device: torch.device) -> None:
    change, message = ERRORS[name]
    x, w, target, _ = made(torch.float32, device)
    x, w, target, b, save = (
        (*change(x, w, target), None, "auto")[:5]
        if name not in ("bias", "save")
        else ((*change(x, w, target), "auto")[:5])
    )
    with pytest.raises((RuntimeError, ValueError)) as caught:
        outputs_of(op, x, w, target, b, save=save)
    assert str(caught.value) == f"[linear_{op}] {message}"


def test_what_autocast_casts_not(device: torch.device) -> None:
    x, w, target, _ = made(torch.float32, device)
    with torch.autocast(device.type, torch.bfloat16):
        with pytest.raises(
            RuntimeError, match=r"^\[linear_cross_entropy\] weight must have input's dtype torch.float32,"
        ):
            fastops.linear_cross_entropy(x, w, target, weight=torch.ones(CLASSES, device=device, dtype=torch.float64))
        with pytest.raises(RuntimeError, match=r"^\[linear_cross_entropy\] linear_weight must be floating point"):
            fastops.linear_cross_entropy(x, w.long(), target)
    with pytest.raises(
        RuntimeError, match=r"^\[linear_cross_entropy\] softcap must be finite and greater than 0 in float32"
    ):
        fastops.linear_cross_entropy(x, w, target, softcap=1e-60)


def test_a_raw_op_checks_its_schedule(device: torch.device) -> None:
    x, w, target, _ = made(torch.float32, device)
    for width, kept in ((0, 0), (5, CLASSES + 1), (5, -1)):
        message = rf"width must be 1 or more and kept 0 to {CLASSES}, got {width} and {kept}"
        for name in ("linear_cross_entropy", "linear_log_prob"):
            with pytest.raises(RuntimeError, match=message):
                getattr(torch.ops.fastops, name)(x, w, target, width=width, kept=kept)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("features", [16, 0])
@pytest.mark.parametrize("sizes", [(2, 0), (3, 4), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("rows", [(5,), (0,), (2, 0)], ids=str)
def test_empty_operands(
    rows: tuple[int, ...], sizes: tuple[int, ...], features: int, reduction: str, device: torch.device
) -> None:
    """Losses of more dimensions, some of them 0, have torch's shapes, and gradients of full shape."""
    x = torch.randn(*rows, features, device=device, requires_grad=True)
    w = torch.randn(*sizes, features, device=device, requires_grad=True)
    target = torch.zeros(*rows, *sizes[1:], dtype=torch.int64, device=device)
    loss = fastops.linear_cross_entropy(x, w, target, reduction=reduction)
    logits = (x.flatten(0, -2) @ w.flatten(0, -2).t()).unflatten(-1, sizes)
    expected = torch.nn.functional.cross_entropy(logits, target.flatten(0, len(rows) - 1), reduction=reduction)
    expected = expected.view(target.shape if reduction == "none" else ())
    torch.testing.assert_close(loss, expected, equal_nan=True)
    gradients = torch.autograd.grad(loss.sum(), (x, w))
    assert [g.shape for g in gradients] == [x.shape, w.shape]
