"""Under autocast each function does what torch's op of that name does: dtype and values, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops
from fastops.cases import Make

PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "square": (fastops.square, torch.square, ((5, 8),)),
    "relu": (fastops.relu, F.relu, ((5, 8),)),
    "sigmoid": (fastops.sigmoid, torch.sigmoid, ((5, 8),)),
    "glu": (fastops.glu, F.glu, ((5, 8),)),
    "linear": (fastops.linear, F.linear, ((5, 8), (3, 8), (3,))),
    "linear_gelu": (
        lambda x, w, b: fastops.linear(x, w, b, "gelu"),
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        ((5, 8), (3, 8), (3,)),
    ),
    "linear_no_bias": (
        lambda x, w: fastops.linear(x, w, None, "relu"),
        lambda x, w: F.relu(F.linear(x, w)),
        ((5, 8), (3, 8)),
    ),
    "layer_norm": (
        lambda x, w, b: fastops.layer_norm(x, (8,), w, b),
        lambda x, w, b: F.layer_norm(x, (8,), w, b),
        ((5, 8), (8,), (8,)),
    ),
    "rms_norm": (
        lambda x, w: fastops.rms_norm(x, (8,), w),
        lambda x, w: F.rms_norm(x, (8,), w),
        ((5, 8), (8,)),
    ),
    "softmax": (lambda x: fastops.softmax(x, -1), lambda x: F.softmax(x, -1), ((5, 8),)),
    "softmax to a dtype": (
        lambda x: fastops.softmax(x, 0, torch.bfloat16),
        lambda x: F.softmax(x, 0, dtype=torch.bfloat16),
        ((5, 8),),
    ),
    "cross_entropy": (
        lambda x: fastops.cross_entropy(x, torch.arange(5, device=x.device)),
        lambda x: F.cross_entropy(x, torch.arange(5, device=x.device)),
        ((5, 8),),
    ),
    "log_softmax": (lambda x: fastops.log_softmax(x, 0), lambda x: F.log_softmax(x, 0), ((5, 8),)),
    "add_layer_norm": (
        lambda x, r, w, b: fastops.add_layer_norm(x, r, (8,), w, b)[0],
        lambda x, r, w, b: F.layer_norm(x + r, (8,), w, b),
        ((5, 8), (5, 8), (8,), (8,)),
    ),
    "add_rms_norm": (
        lambda x, r, w: fastops.add_rms_norm(x, r, (8,), w)[0],
        lambda x, r, w: F.rms_norm(x + r, (8,), w),
        ((5, 8), (5, 8), (8,)),
    ),
}


# Older versions of torch leave the half types to rms_norm under CUDA autocast; ours does as the newer ones do.
CASTS_RMS_NORM = "AutocastCUDA" in torch._C._dispatch_dump("aten::rms_norm")


@pytest.mark.parametrize(("ours", "theirs", "shapes"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16, torch.float64])
def test_as_torch(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    shapes: tuple[tuple[int, ...], ...],
    low: torch.dtype,
    own: torch.dtype,
    device: torch.device,
) -> None:
    if own is torch.float64 and len(shapes) > 1 and shapes[1] == (3, 8) and device.type == "cpu":
        pytest.skip("autocast leaves float64 alone, nothing to compare")

    if theirs in (PAIRS["rms_norm"][1], PAIRS["add_rms_norm"][1]) and device.type == "cuda" and not CASTS_RMS_NORM:
        pytest.skip("this torch does not cast rms_norm")

    def run(function: Callable[..., Any]) -> tuple[Tensor, ...]:
        make = Make(device, own)
        inputs = [make(*shape).requires_grad_() for shape in shapes]
        with torch.autocast(device.type, low):
            out = function(*inputs)
        return out, *torch.autograd.grad(out.sum(), inputs)

    tolerance = 3e-2 if torch.bfloat16 in (own, low) else 4e-3
    for a, b in zip(run(ours), run(theirs), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_lltm_computes_in_autocasts_dtype(device: torch.device) -> None:
    """As torch's LSTM cell on CUDA."""
    make = Make(device, torch.float32)
    args = [make(*shape).requires_grad_() for shape in ((3, 4), (15, 9), (15,), (3, 5), (3, 5))]
    with torch.autocast(device.type, torch.bfloat16):
        out = fastops.lltm(*args)
    expected = fastops.lltm(*args)
    for a, b in zip(out, expected, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, rtol=5e-2, atol=5e-2)
    for gradient in torch.autograd.grad(sum(o.sum() for o in out), args):
        assert gradient.dtype == torch.float32


def test_off_inside(device: torch.device) -> None:
    x, w = torch.randn(3, 4, device=device), torch.randn(5, 4, device=device)
    with torch.autocast(device.type, torch.bfloat16), torch.autocast(device.type, enabled=False):
        assert fastops.linear(x, w, None, "relu").dtype == torch.float32


def test_transforms_under_autocast(device: torch.device) -> None:
    x, w = torch.randn(3, 4, device=device), torch.randn(5, 4, device=device)

    def loss(w: Tensor) -> Tensor:
        return fastops.linear(x, w, None, "silu").float().sum()

    with torch.autocast(device.type, torch.bfloat16):
        found = torch.func.grad(loss)(w)
        tracked = w.clone().requires_grad_()
        (expected,) = torch.autograd.grad(loss(tracked), tracked)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
