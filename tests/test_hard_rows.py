"""layer_norm of rows that are hard on the mean: outliers, constant or nearly so, huge, far from where they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from fastops.cases import DTYPES, Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def layer_norms(module: Any, x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """What a module makes of x and of a gradient, without parameters."""
    x = x.detach().requires_grad_()
    y = module.layer_norm(x, x.shape[-1:], eps=eps)
    grad = Make(x.device, torch.float32, seed=5)(*x.shape).to(x.dtype)
    return y.detach(), torch.autograd.grad(y, x, grad)[0]


def layer_norms_truth(x: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    wide = x.double().requires_grad_()
    y = formulas.layer_norm(wide, x.shape[-1:], eps=eps)
    grad = Make(x.device, torch.float32, seed=5)(*x.shape).to(x.dtype).double()
    return y.detach(), torch.autograd.grad(y, wide, grad)[0]


# Short rows, rows that blocks of a cluster have on CUDA, and from 16388 on some that one block has in parts.
LENGTHS = (8, 61, 768, 4096, 12284, 16388, 16391, 20000, 131080)


def skip_where_squares_overflow(device: torch.device, distance: float) -> None:
    if device.type == "cuda" and distance > 1e18:
        pytest.skip("the CUDA kernels' sums are float32, also those of squares")


@pytest.mark.parametrize("module", [fastops, fastops.reference], ids=["kernels", "composition"])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("where", ["first", "second", "middle", "last"])
@pytest.mark.parametrize("outlier", [1e4, 1e6])
def test_elements_keep_their_digits_beside_an_outlier(
    module: Any, n: int, where: str, outlier: float, device: torch.device
) -> None:
    """Each by itself: relative errors, of elements that the mean does not cancel."""
    x = Make(device, torch.float32)(3, n)
    x[:, {"first": 0, "second": 1, "middle": n // 2, "last": n - 1}[where]] = outlier
    for found, truth in zip(layer_norms(module, x), layer_norms_truth(x), strict=True):
        scale = truth.abs().median()
        error = (found.double() - truth).abs() / truth.abs().clamp_min(0.1 * scale)
        assert error.max() < 5e-5


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("value", [3.0, -0.1, 1e4 / 3, 1e37, 7e-24])
@every_dtype
def test_constant_rows_give_the_bias(n: int, value: float, dtype: torch.dtype, device: torch.device) -> None:
    if dtype == torch.float16:
        value = {1e37: 6e4, 7e-24: 6e-8}.get(value, value)
    x = torch.full((3, n), value, dtype=dtype, device=device)
    bias = Make(device, dtype)(n)
    assert same_bits(fastops.layer_norm(x, (n,), None, bias), bias.expand(3, n).contiguous())
    found, truth = layer_norms(fastops, x)[1], layer_norms_truth(x)[1]
    assert ulps(found, truth.cpu()) <= 8


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("value", [1e4, -123.456, 1e37])
def test_rows_that_are_constant_but_for_the_last_bits(n: int, value: float, device: torch.device) -> None:
    skip_where_squares_overflow(device, value * 2**-23)
    around = torch.full((3, n), value, device=device)
    noise = torch.randint(-1, 2, (3, n), generator=torch.Generator().manual_seed(0), dtype=torch.int32).to(device)
    x = (around.view(torch.int32) + noise).view(torch.float32)
    for eps in (0.0, 1e-5):
        for found, truth in zip(layer_norms(fastops, x, eps), layer_norms_truth(x, eps), strict=True):
            assert ulps(found, truth.cpu()) <= 32


@pytest.mark.parametrize("n", LENGTHS)
def test_rows_whose_squares_overflow(n: int, device: torch.device) -> None:
    skip_where_squares_overflow(device, 1e30)
    x = Make(device, torch.float32)(3, n, scale=1e30)
    for found, truth in zip(layer_norms(fastops, x), layer_norms_truth(x), strict=True):
        assert ulps(found, truth.cpu()) <= 32


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("distance", [1.4, 4.0, 16.0, 1e3])
@every_dtype
def test_rows_that_begin_far_from_their_mean(n: int, distance: float, dtype: torch.dtype, device: torch.device) -> None:
    """Every second one does; none has other bits for what is beside it."""
    x = Make(device, dtype)(17, n)
    x[::2, :4] = distance
    for found, truth in zip(layer_norms(fastops, x), layer_norms_truth(x), strict=True):
        assert ulps(found, truth.cpu()) < (0.51 if dtype in (torch.float16, torch.bfloat16) else 8)
    alone = torch.cat([fastops.layer_norm(row[None], (n,)) for row in x])
    assert same_bits(fastops.layer_norm(x, (n,)), alone)


KINDS: dict[str, Callable[[Tensor], object]] = {
    "random": lambda x: x,
    "first four at 1.4": lambda x: x[:, :4].fill_(1.4),
    "first four at -30": lambda x: x[:, :4].fill_(-30),
    "first 64 at 1.4": lambda x: x[:, :64].fill_(1.4),
    "first 64 a little off": lambda x: x[:, :64].add_(0.24 - x[:, :64].mean(1, keepdim=True)),
    "constant half": lambda x: x[:, : x.shape[1] // 2].fill_(0.7),
    "ramp": lambda x: x.add_(torch.linspace(-5, 5, x.shape[1])),
    "large by turns": lambda x: (x[:, ::2].add_(1000), x[:, 1::2].sub_(1000)),
    "far from 0": lambda x: x.add_(1e4),
}


@pytest.mark.parametrize("n", [48, 96, 200, 768, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_of_the_size_of_torchs(n: int, kind: str, level: str) -> None:
    """Whatever a row begins with: of the mean, of rstd and of the result, or of the size of a rounding."""
    rows = 1000 if n < 1000 else 100
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(0))
    KINDS[kind](x)
    truth_y, truth_mean, truth_rstd = torch.native_layer_norm(x.double(), (n,), None, None, 1e-5)
    y, statistics = torch.ops.fastops.layer_norm_forward(x)
    theirs = torch.native_layer_norm(x, (n,), None, None, 1e-5)
    mean = statistics[:, :1].double() + statistics[:, 1:2].double()

    def errors(found: Tensor, truth: Tensor) -> tuple[float, float]:
        error = (found.double() - truth).abs()
        return error.max().item(), error.square().mean().sqrt().item()

    eps = torch.finfo(torch.float32).eps
    for ours, torchs, truth, least in (
        (mean, theirs[1], truth_mean, 0.7 * eps * x.std().item()),
        (statistics[:, :1], theirs[1], truth_mean, eps * (0.7 * x.std() + truth_mean.abs().max()).item()),
        (statistics[:, 2:], theirs[2], truth_rstd, eps * truth_rstd.max().item()),
        (y, theirs[0], truth_y, eps * truth_y.abs().max().item()),
    ):
        (most, typical), (their_most, their_typical) = errors(ours, truth), errors(torchs, truth)
        assert most <= max(2 * their_most, 1.5 * least)
        assert typical <= 1.5 * max(their_typical, least / 2)


def test_rows_without_columns_have_the_compositions_statistics(device: torch.device) -> None:
    x = torch.ones(3, 0, device=device)
    for op in ("layer_norm", "rms_norm"):
        ours, plain = (getattr(torch.ops.fastops, f"{op}_forward{kind}")(x) for kind in ("", "_reference"))
        assert all(same_bits(a, b) for a, b in zip(ours, plain, strict=True))
