"""More than 2^31 elements: every offset is 64 bits wide."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from fastops.cases.norms import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM, Norm

ELEMENTS = 2**31 + 4096 + 3
NEEDED_GIB = 20


def free_gib(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0] / 2**30
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


NORMS = (LAYER_NORM, RMS_NORM, ADD_LAYER_NORM, ADD_RMS_NORM)


def forward(norm: Norm, *rows: Tensor, parameter: Tensor | None = None) -> tuple[Tensor, ...]:
    """The raw op with statistics and with this parameter as weight and, for a layer norm, bias."""
    return getattr(torch.ops.fastops, f"{norm.name}_forward")(*rows, *[parameter] * (1 + norm.layer))


def backward(norm: Norm, *args: Any, parameter: Tensor | None = None, needs: tuple[bool, ...]) -> tuple[Tensor, ...]:
    op = getattr(torch.ops.fastops, f"{norm.name}_backward")
    return op(*args, *[parameter] * (1 + norm.layer), *needs[: 2 + norm.layer])


@pytest.fixture
def large(device: torch.device) -> Tensor:
    """Zeros, but for marks at the beginning, around element 2^31 and at the end."""
    if (free := free_gib(device)) < NEEDED_GIB:
        pytest.skip(f"{NEEDED_GIB} GiB of free memory needed, {free:.0f} there")
    x = torch.zeros(ELEMENTS, dtype=torch.bfloat16, device=device)
    x[MARKS] = torch.tensor(VALUES, dtype=torch.bfloat16, device=device)
    return x


MARKS = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, ELEMENTS - 2, ELEMENTS - 1]
VALUES = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (fastops.relu, [1.0, 0.0, 3.0, 0.0, 5.0, 0.0, 7.0]),
        (fastops.square, [1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0]),
        (lambda x: fastops.axpby(x, x[:1], 3.0, -1.0), [2.0, -7.0, 8.0, -13.0, 14.0, -19.0, 20.0]),
    ],
    ids=["relu", "square", "axpby"],
)
def test_elementwise(large: Tensor, function: Callable[[Tensor], Tensor], expected: list[float]) -> None:
    assert function(large)[MARKS].tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.name)
def test_rows_beyond(device: torch.device, large: Tensor, norm: Norm) -> None:
    """The last rows of each norm, forward and backward, are those of these rows alone."""
    n = 4096
    x = large[3:].view(-1, n)
    x[-2:] = torch.randn(2, n, device=device).bfloat16()
    whole, alone = ([x[:1].expand(rows.shape)] * norm.residual for rows in (x, x[-2:]))
    out = forward(norm, x, *whole)
    for a, b in zip(out, forward(norm, x[-2:], *alone), strict=True):
        assert torch.equal(a[-2:], b)
    kept = out[1] if norm.residual else x
    statistics = out[1 + norm.residual :]
    del out, a, b
    grad = x[-1:].expand(x.shape)
    grads = [grad] * (1 + norm.residual)
    (grad_input, *_) = backward(norm, *grads, kept, *statistics, needs=(True, False, False))
    last = [g[-2:] for g in grads], [s[-2:].contiguous() for s in statistics]
    (expected, *_) = backward(norm, *last[0], kept[-2:], *last[1], needs=(True, False, False))
    assert torch.equal(grad_input[-2:], expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("dim", [0, 1])
def test_softmax_beyond(device: torch.device, large: Tensor, name: str, dim: int) -> None:
    """The last rows and the last columns are those of these alone, forward and backward."""
    forward, backward = (getattr(torch.ops.fastops, f"{name}{which}") for which in ("", "_backward"))
    n = 4096
    x = large[3:].view(-1, n) if dim else large[3:].view(n, -1)
    last = (slice(-2, None), slice(None)) if dim else (slice(None), slice(-2, None))
    x[last] = torch.randn(x[last].shape, device=device).bfloat16()
    y = forward(x, dim)
    assert torch.equal(y[last], forward(x[last], dim))
    assert torch.equal(backward(x, y, dim)[last], backward(x[last], y[last], dim))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [4096, 2**31])
def test_losses_beyond(device: torch.device, large: Tensor, classes: int) -> None:
    """The last rows' loss and gradient are those of these rows alone; of one row, of classes beyond 2^31, torch's."""
    ops = torch.ops.fastops
    if classes == 2**31:
        x, target = large[None], torch.tensor([large.numel() - 1], device=device)
        loss, lse, total = ops.cross_entropy(x, target, None, 0)
        expected = math.log(large.numel() + sum(math.expm1(v) for v in VALUES)) - VALUES[-1]
        assert lse.item() - VALUES[-1] == pytest.approx(expected, rel=1e-5)
        gradient = ops.cross_entropy_backward(loss, None, x, target, lse, total, None, 0)
        assert gradient[0, -1] == pytest.approx(-loss.item(), rel=1e-2)
        assert gradient[0, -3].abs() < 1e-6
        return
    x = large[3:].view(-1, classes)
    x[-2:] = torch.randn(2, classes, device=device).bfloat16()
    target = torch.arange(len(x), device=device) % classes
    loss, lse, total = ops.cross_entropy(x, target, None, 0)
    alone = ops.cross_entropy(x[-2:], target[-2:], None, 0)
    assert torch.equal(loss[-2:], alone[0])
    gradient = ops.cross_entropy_backward(loss, None, x, target, lse, total, None, 0)
    expected = ops.cross_entropy_backward(alone[0], None, x[-2:], target[-2:], alone[1], total, None, 0)
    assert torch.equal(gradient[-2:], expected)


@pytest.mark.slow
def test_backwards_beyond(device: torch.device, large: Tensor) -> None:
    """The last elements of each elementwise backward, and of the cell and the epilogue, are those of these alone."""
    ops = torch.ops.fastops
    grad = large[:1].expand(large.shape)
    for name in ("square_backward", "relu_backward", "sigmoid_backward"):
        op = getattr(ops, name)
        assert torch.equal(op(grad, large)[-9:], op(grad[-9:], large[-9:])), name
    for whole, alone in zip(ops.relu_mask(large[:-1]), ops.relu_mask(large[-10:-1]), strict=True):
        assert torch.equal(whole[-2:], alone[-2:])
    mask, last = ops.relu_mask(large)[1], 8 + large.numel() % 8  # elements of the last two bytes
    grad_input = ops.relu_mask_backward(grad, mask, [1])[-last:]
    assert torch.equal(grad_input, ops.relu_mask_backward(grad[-last:], mask[-2:], [1]))
    assert torch.equal(ops.sigmoid(large)[-9:], ops.sigmoid(large[-9:]))
    n = 3 * 1024
    rows = large[: large.numel() // n * n].view(-1, n)
    rows[-2:] = torch.randn(2, n, device=device).bfloat16()
    bias = torch.randn(n, device=device)
    for activation in ("relu", "silu"):
        alone = ops.linear_epilogue(rows[-2:], bias, activation)
        assert torch.equal(ops.linear_epilogue(rows, bias, activation)[-2:], alone), activation
    cell = rows[:, : n // 3]
    bias = bias.bfloat16()
    last = ops.lltm_cell(rows[-2:], bias, cell[-2:])
    for whole, alone in zip(ops.lltm_cell(rows, bias, cell), last, strict=True):
        assert torch.equal(whole[-2:], alone)


@pytest.mark.slow
def test_parameter_gradients_beyond(device: torch.device, large: Tensor) -> None:
    """Sums over 2^31 elements of which all but the last two rows are zero."""
    ops, n = torch.ops.fastops, 4096
    grad = large[: large.numel() // n * n].view(-1, n).zero_()
    grad[-2:] = torch.randn(2, n, device=device).bfloat16()
    x = torch.randn(1, n, device=device).bfloat16().expand(grad.shape)
    expected = grad[-2:].float().sum(0)
    f32 = torch.zeros(n, device=device)
    grad_bias = ops.linear_epilogue_backward(grad, grad, f32, "none", True)[1]
    torch.testing.assert_close(grad_bias, expected)
    for norm in NORMS:
        outputs = forward(norm, x[:1], *[torch.zeros_like(x[:1])] * norm.residual, parameter=f32)
        statistics = [s.expand(len(grad), *s.shape[1:]).contiguous() for s in outputs[1 + norm.residual :]]
        grads = [grad] + [None] * norm.residual
        needs = (False, True, True)
        _, grad_weight, *biases = backward(norm, *grads, x, *statistics, parameter=f32, needs=needs)
        for grad_bias in biases:
            torch.testing.assert_close(grad_bias, expected)
        normalised = fastops.layer_norm if norm.layer else fastops.rms_norm
        torch.testing.assert_close(grad_weight, expected * normalised(x[0].float(), (n,)))
