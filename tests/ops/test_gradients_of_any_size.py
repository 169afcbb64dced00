"""Incoming gradients far from 1, and parameters of more digits than rows: gradients are as exact as others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fastops
from fastops.selftest.accuracy import ulps


@pytest.mark.parametrize("size", [1e-32, 1e-24, 1e24, 1e32])
def test_of_losses(size: float, device: torch.device) -> None:
    """Below 2^-62 a sum that is lowered before it meets a raised power would be no normal number."""
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(5, 67, generator=generator), torch.arange(5)
    for ours, plain in (
        (lambda x, y: fastops.log_softmax(x, -1), lambda x, y: F.log_softmax(x, -1)),
        (
            lambda x, y: fastops.cross_entropy(x, y, reduction="none"),
            lambda x, y: F.cross_entropy(x, y, reduction="none"),
        ),
        (
            lambda x, y: fastops.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
            lambda x, y: F.cross_entropy(x, y, reduction="none", label_smoothing=0.1),
        ),
    ):
        wide = x.double().requires_grad_()
        truth = plain(wide, target)
        grad = torch.randn(truth.shape, generator=generator) * size
        (expected,) = torch.autograd.grad(truth, wide, grad.double())
        narrow = x.to(device).requires_grad_()
        (found,) = torch.autograd.grad(ours(narrow, target.to(device)), narrow, grad.to(device))
        assert ulps(found, expected) < 32


def test_a_bias_alone_has_its_own_digits(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(65, 8, generator=generator), torch.randn(65, 8, generator=generator)
    bias = torch.zeros(8, dtype=torch.float64, device=device, requires_grad=True)
    y = fastops.layer_norm(x.to(device), (8,), None, bias)
    (found,) = torch.autograd.grad(y, bias, grad.to(device, y.dtype))
    assert ulps(found, grad.double().sum(0)) < 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_what_is_masked_has_no_gradient(dtype: torch.dtype, device: torch.device) -> None:
    """e^-104 is 0 in float32, and 1e30 times as much is not. bfloat16 has zeros below 6e4 times as much."""
    generator = torch.Generator().manual_seed(0)
    x, target = torch.randn(5, 67, generator=generator).to(device, dtype), torch.arange(5, device=device)
    x[:, 7::5] = -torch.inf
    for of in (
        lambda x: fastops.softmax(x, -1).square().sum(),
        lambda x: fastops.log_softmax(x, -1)[:, 0].sum(),
        lambda x: fastops.cross_entropy(x, target),
        lambda x: fastops.log_prob(x, target)[0].sum(),
    ):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(of(x) * (6e4 if dtype == torch.bfloat16 else 1e30), x)
        assert not gradient[x == -torch.inf].any()
        assert gradient.any()
