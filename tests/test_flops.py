"""torch's FLOP counter sees the products in the operators that multiply matrices."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import fastops

ROWS, FEATURES, CLASSES = 8, 16, 32
PRODUCT = 2 * ROWS * FEATURES * CLASSES


def flops_of(function: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("op", [fastops.linear_cross_entropy, fastops.linear_log_prob])
@pytest.mark.parametrize(("save", "products"), [("auto", 3), ("logits", 3), ("none", 4)])
def test_losses_of_a_linear_layer(op: Callable[..., Any], save: str, products: int, device: torch.device) -> None:
    target = torch.zeros(ROWS, dtype=torch.int64, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(ROWS, FEATURES, device=device, dtype=dtype)
        w = torch.randn(CLASSES, FEATURES, device=device, dtype=dtype)
        loss = functools.partial(op, x, w, target, save=save)
        assert flops_of(loss) == PRODUCT
        w.requires_grad_()
        assert flops_of(lambda loss=loss: loss().sum().backward()) == (products - 1) * PRODUCT
        x.requires_grad_()
        assert flops_of(lambda loss=loss: loss().sum().backward()) == products * PRODUCT


def test_logits_of_which_some_are_kept(device: torch.device) -> None:
    """An odd vocabulary on a GPU keeps whole vectors; the last classes are multiplied again."""
    classes = 50257
    x = torch.randn(4, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(classes, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    target = torch.zeros(4, dtype=torch.int64, device=device)
    again = 0 if device.type == "cpu" else classes % 256
    count = flops_of(lambda: fastops.linear_cross_entropy(x, w, target).backward())
    assert count == 2 * 4 * 8 * (3 * classes + again)


def test_lltm(device: torch.device) -> None:
    x, h = torch.randn(4, 6, device=device), torch.randn(4, 3, device=device)
    w, b = torch.randn(9, 9, device=device, requires_grad=True), torch.randn(9, device=device)
    assert flops_of(lambda: fastops.lltm(x, w, b, h, h)) == 2 * 4 * 9 * 9


def test_the_counter_is_imported_by_its_users_alone() -> None:
    code = """
import sys, fastops
assert "torch.utils.flop_counter" not in sys.modules
from torch.utils.flop_counter import flop_registry
import torch
assert torch.ops.fastops.linear_cross_entropy in flop_registry
"""
    subprocess.run([sys.executable, "-c", code], check=True)
