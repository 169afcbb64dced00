"""linear where torch's product takes the bias, whose gradient the pass behind it makes all the same."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch import Tensor
from transforms import every_transform

import fastops
from fastops.cases import DTYPES
from fastops.ops.linear import ACTIVATIONS

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


@pytest.fixture
def product_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("fastops.ops.linear"), "_product_adds", lambda *_: True)


def arguments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(3, 4), (5, 4), (5,)]
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


@every_activation
def test_derivatives(activation: str, product_adds: None) -> None:
    def linear(*args: Tensor) -> Tensor:
        return fastops.linear(*args, activation)

    with Recorder() as recorder:
        linear(*arguments()).sum().backward()
    assert recorder.ops == ["linear_epilogue", "linear_epilogue_backward"]
    assert all(args[-1] is True for args in recorder.args)
    assert torch.autograd.gradcheck(linear, arguments(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(linear, arguments())


@every_activation
@every_transform
@pytest.mark.parametrize("first", ["input", "bias"])
def test_transforms(activation: str, transform: Callable[..., Any], first: str, product_adds: None) -> None:
    order = (0, 1, 2) if first == "input" else (2, 1, 0)

    def ours(*args: Tensor) -> Tensor:
        return fastops.linear(*(args[k] for k in order), activation)

    def plain(*args: Tensor) -> Tensor:
        return fastops.reference.linear(*(args[k] for k in order), activation)

    x, w, finite = (t.detach() for t in arguments())
    b = finite.clone()
    if activation in ("relu", "sigmoid"):  # of the others inf·0 is NaN
        b[1] = -torch.inf
    batch = [torch.stack([x, -x]), torch.stack([w, -w]), torch.stack([finite, b])]
    inputs, batches = [(x, w, b)[k] for k in order], [batch[k] for k in order]
    torch.testing.assert_close(transform(ours, inputs, batches), transform(plain, inputs, batches))


@every_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_relu_passes_the_gradient_of_nan_on(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    """As torch's does."""
    x = torch.ones(2, 8, dtype=dtype, device=device)
    w = torch.tensor([torch.nan, 1.0, -1.0, torch.inf], device=device).to(dtype)[:, None] * torch.ones_like(x[0])
    grad = torch.arange(1, 9, device=device).to(dtype).view(2, 4)
    b = torch.zeros_like(w[:, 0], requires_grad=True) if bias else None
    leaves = [w.requires_grad_(), *([] if b is None else [b])]
    found = torch.autograd.grad(fastops.linear(x, w, b, "relu"), leaves, grad)
    expected = torch.autograd.grad(torch.relu(torch.nn.functional.linear(x, w, b)), leaves, grad)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["sigmoid", "gelu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "features", "out", "adds"),
    [
        (torch.float32, 1, 96, 33, False),
        (torch.float32, 2, 96, 33, True),
        (torch.float32, 16, 96, 128, True),
        (torch.float32, 17, 96, 128, False),
        (torch.float32, 4, 1030, 128, False),
        (torch.float32, 5, 1030, 128, True),
        (torch.float32, 5, 1030, 127, False),
        (torch.float32, 511, 96, 128, False),
        (torch.float32, 512, 96, 128, True),
        (torch.float32, 512, 96, 63, False),
        (torch.float32, 2048, 512, 1023, False),
        (torch.float32, 2048, 512, 1024, True),
        (torch.float64, 16, 96, 129, False),
        (torch.bfloat16, 16, 96, 128, False),
        (torch.bfloat16, 16, 96, 132, True),
        (torch.float16, 16, 97, 128, True),
    ],
)
def test_where_the_product_adds(
    cuda: torch.device, dtype: torch.dtype, rows: int, features: int, out: int, adds: bool, activation: str
) -> None:
    sizes = [(rows, features), (out, features), (out,)]
    inputs = [torch.randn(size, device=cuda).div(8).to(dtype).requires_grad_() for size in sizes]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with Recorder() as recorder:
        output = fastops.linear(*inputs, activation)
    assert recorder.ops == ["linear_epilogue"]
    assert (recorder.args[0][-1] is True) == adds
    expected = getattr(torch.nn.functional, activation)(torch.nn.functional.linear(*wide))
    grad = torch.randn_like(output)
    found = torch.autograd.grad(output, inputs, grad)
    truths: tuple[Any, ...] = (expected, *torch.autograd.grad(expected, wide, grad.double()))
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-4)
    for actual, truth in zip((output, *found), truths, strict=True):
        assert (actual.double() - truth).norm() <= tolerance * truth.norm()
