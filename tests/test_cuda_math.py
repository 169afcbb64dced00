"""Elementary functions of the CUDA kernels in float32, against float64, in units in the last place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastops.cases.linear import PLAIN_ACTIVATIONS, gelu, gelu_tanh

ops = torch.ops.fastops


def numbers(device: torch.device) -> Tensor:
    """Where the tail of the normal distribution is a normal number of float32, evenly and around 0 by magnitude."""
    even = torch.linspace(-12.9, 12.9, 2**20)
    small = torch.logspace(-30, 0, 2**16)
    return torch.cat([even, small, -small]).to(device)


def largest_ulps(found: Tensor, truth: Tensor, scale: Tensor) -> float:
    return ((found.double() - truth).abs() / (scale.abs() * 2.0**-23)).max().item()


def test_gelu(cuda: torch.device) -> None:
    x = numbers(cuda)
    truth = gelu(x.double())
    assert largest_ulps(ops.linear_epilogue(x[:, None], None, "gelu")[:, 0], truth, truth) <= 12


def test_derivative_of_gelu(cuda: torch.device) -> None:
    """Beside its two terms, which cancel near -0.75."""
    x = numbers(cuda)
    wide = x.double().requires_grad_()
    (truth,) = torch.autograd.grad(gelu(wide).sum(), wide)
    density = torch.exp(-0.5 * wide * wide).detach() * 0.3989422804014327
    found = ops.linear_epilogue_backward(torch.ones_like(x)[:, None], x[:, None], None, "gelu", False)[0][:, 0]
    distribution = 0.5 * torch.erfc(wide.detach() * -(0.5**0.5))
    assert largest_ulps(found, truth, distribution + (wide.detach() * density).abs()) <= 12


def test_gelu_tanh(cuda: torch.device) -> None:
    x = numbers(cuda)
    x = x[x.abs() < 10]  # beyond, what it is to the left is no normal number of float32
    truth = gelu_tanh(x.double())
    assert largest_ulps(ops.linear_epilogue(x[:, None], None, "gelu_tanh")[:, 0], truth, truth) <= 8


def test_derivative_of_gelu_tanh(cuda: torch.device) -> None:
    """Beside its two terms, as gelu's."""
    x = numbers(cuda)
    x = x[x.abs() < 10]
    wide = x.double().requires_grad_()
    (truth,) = torch.autograd.grad(gelu_tanh(wide).sum(), wide)
    z2 = 2 * (2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)
    part = torch.sigmoid(z2)
    (slope,) = torch.autograd.grad(part.sum(), wide)
    found = ops.linear_epilogue_backward(torch.ones_like(x)[:, None], x[:, None], None, "gelu_tanh", False)[0][:, 0]
    assert largest_ulps(found, truth, part.detach() + (wide.detach() * slope).abs()) <= 10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gelu_tanh_of_what_is_large_or_no_number(dtype: torch.dtype, cuda: torch.device) -> None:
    """torch's own, but for the derivative at large numbers, of which torch's square overflows."""
    most, least = torch.finfo(dtype).max, torch.finfo(dtype).min
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 6e4, -6e4, most, least], dtype=dtype, device=cuda)[:, None]
    y = ops.linear_epilogue(x, None, "gelu_tanh")
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").to(dtype)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    slopes = ops.linear_epilogue_backward(torch.ones_like(x), x, None, "gelu_tanh", False)[0][:, 0].tolist()
    assert all(slope != slope for slope in slopes[:3])
    assert slopes[3:] == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.51), (torch.float16, 0.57)])
@pytest.mark.parametrize("activation", ["sigmoid", "silu", "gelu", "gelu_tanh"])
def test_every_half_precision_number(activation: str, dtype: torch.dtype, most: float, cuda: torch.device) -> None:
    """Half a unit in the last place is the rounding's, denormals' unit that of the least normal number."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    x = every[every.isfinite()].to(cuda)
    truth = PLAIN_ACTIVATIONS[activation](x.double())
    found = ops.linear_epilogue(x[:, None], None, activation)[:, 0]
    format = torch.finfo(dtype)
    unit = format.eps * torch.exp2(truth.abs().clamp(min=format.tiny).log2().floor())
    assert ((found.double() - truth).abs() / unit).max().item() <= most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gelu_of_what_is_not_finite(dtype: torch.dtype, cuda: torch.device) -> None:
    x = torch.tensor([torch.nan, torch.inf, 100.0, -100.0], device=cuda, dtype=dtype)
    y = ops.linear_epilogue(x[:, None], None, "gelu")[:, 0].float().tolist()
    assert y[0] != y[0]
    assert y[1:] == [torch.inf, 100.0, 0.0]
