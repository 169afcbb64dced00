"""Our polynomials, through the ops that use them, over the whole range of f32 and at every ISA level."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from torch import Tensor

from fastops.cases.linear import PLAIN_ACTIVATIONS, gelu, gelu_tanh

ops = torch.ops.fastops


def every_kind_of_number() -> Tensor:
    """Every 2039th bit pattern: both signs, denormals, all exponents, infinities and NaNs."""
    return torch.arange(-(2**31), 2**31, 2039, dtype=torch.int64).to(torch.int32).view(torch.float32)


def elu(x: Tensor) -> Tensor:
    """new_cell of an open input gate and an empty cell; 1 is what sigmoid(100) rounds to."""
    gates = torch.stack([torch.full_like(x, 100.0), torch.zeros_like(x), x], 1)
    return ops.lltm_cell(gates, torch.zeros(3), torch.zeros(len(x), 1))[1][:, 0]


def tanh(x: Tensor) -> Tensor:
    """new_h of an open output gate, where the cell is x."""
    gates = torch.stack([torch.zeros_like(x), torch.full_like(x, 100.0), torch.zeros_like(x)], 1)
    return ops.lltm_cell(gates, torch.zeros(3), x[:, None])[0][:, 0]


FUNCTIONS = [
    pytest.param(ops.sigmoid, torch.sigmoid, 3, id="sigmoid"),
    pytest.param(tanh, torch.tanh, 3, id="tanh"),
    pytest.param(elu, torch.nn.functional.elu, 2, id="elu"),
    pytest.param(lambda x: ops.linear_epilogue(x, None, "gelu"), gelu, 10, id="gelu"),
    pytest.param(lambda x: ops.linear_epilogue(x, None, "gelu_tanh"), gelu_tanh, 3, id="gelu_tanh"),
    pytest.param(lambda x: ops.linear_epilogue(x, None, "silu"), torch.nn.functional.silu, 5, id="silu"),
]


@pytest.mark.parametrize(("ours", "truth", "bound"), FUNCTIONS)
def test_ulps(level: str, ours: Callable[[Tensor], Tensor], truth: Callable[[Tensor], Tensor], bound: float) -> None:
    x = every_kind_of_number()
    y, t = ours(x), truth(x.double())
    assert torch.equal(y.isnan(), t.isnan())
    assert torch.equal(y.isinf(), t.float().isinf())
    # silu and gelu, in both forms, of a large negative number are that number times a denormal, whose few digits they
    # inherit.
    usual = t.isfinite() & t.float().isfinite() & (t.abs() > 104 * torch.finfo(torch.float32).tiny)
    ulps = (y.double() - t).abs()[usual] / (t.abs()[usual] * 2.0**-23)
    assert ulps.max().item() <= bound
    small = t.isfinite() & ~usual
    assert (y.double() - t).abs()[small & t.float().isfinite()].max().item() <= 256 * 2.0**-149


def test_ulps_of_sigmoid_in_float64(level: str) -> None:
    """Down to where it is denormal, and 0, and up to 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [
            torch.empty(3000, dtype=torch.float64).uniform_(-760, 40, generator=generator),
            torch.randn(2000, dtype=torch.float64, generator=generator),
            torch.tensor([0.0, -0.0, 1e-300, -745.2, -709.0, -708.4, 37.0, 1e308, -1e308], dtype=torch.float64),
        ]
    )
    limits = torch.finfo(torch.float64)
    with mpmath.workprec(200):
        for value, found in zip(x.tolist(), ops.sigmoid(x).tolist(), strict=True):
            truth = 1 / (1 + mpmath.exp(-mpmath.mpf(value)))
            assert abs(found - truth) <= 3 * limits.eps * max(truth, limits.tiny)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=torch.float64)
    assert ops.sigmoid(special).tolist()[1:] == [1.0, 0.0]
    assert ops.sigmoid(special)[0].isnan()


def test_ulps_of_gelu_tanh_in_float64(level: str) -> None:
    """The exponent alone would be wrong by its own units in the last place, 100 and more in the tail."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [
            torch.empty(3000, dtype=torch.float64).uniform_(-21.3, 9, generator=generator),
            torch.randn(2000, dtype=torch.float64, generator=generator),
            torch.tensor([0.0, 1e-300, -1e-300, 22.0, 1e308, -1e308], dtype=torch.float64),
        ]
    )
    found, slopes = ops.linear_epilogue(x, None, "gelu_tanh").tolist(), derivative(x, "gelu_tanh").tolist()
    limits = torch.finfo(torch.float64)
    with mpmath.workprec(300):
        scale, cubic = mpmath.sqrt(2 / mpmath.pi), mpmath.mpf("0.044715")
        for value, y, slope in zip(map(mpmath.mpf, x.tolist()), found, slopes, strict=True):
            part = 1 / (1 + mpmath.exp(-2 * scale * (value + cubic * value**3)))
            truth, density = value * part, 2 * scale * (1 + 3 * cubic * value**2) * part * (1 - part)
            assert abs(y - truth) <= 3 * limits.eps * max(abs(truth), 32 * limits.tiny)
            assert abs(slope - part - value * density) <= 3 * limits.eps * (1 + abs(part + value * density))


def derivative(x: Tensor, activation: str) -> Tensor:
    saved = x[:, None]
    return ops.linear_epilogue_backward(torch.ones_like(saved), saved, None, activation, False)[0][:, 0]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_derivatives(level: str, activation: str) -> None:
    """They cross zero, so the error is counted in ulps of 1 + |truth|."""
    x = every_kind_of_number()
    x = x[x.isfinite()]
    wide = x.double().requires_grad_()
    (t,) = torch.autograd.grad(PLAIN_ACTIVATIONS[activation](wide).sum(), wide)
    known = t.isfinite()
    found = derivative(x, activation)
    error = (found.double() - t).abs() / ((1 + t.abs()) * 2.0**-23)
    assert error[known].max().item() <= 4
    if activation == "gelu_tanh":
        assert found.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_survives(level: str, dtype: torch.dtype) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        try:
            y = ops.axpby_backward(x, 1.0, 1.0)[0]
        finally:
            torch.set_flush_denormal(False)
        if flush and dtype == torch.bfloat16:
            continue  # a denormal bfloat16 is a denormal float32, which the mode is there to flush
        assert torch.equal(y.nan_to_num(0.125), x.nan_to_num(0.125))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_relu_of_every_half(level: str, dtype: torch.dtype) -> None:
    """It looks at the bits."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    expected = torch.where(x <= 0, 0, x).view(torch.int16)
    y, mask = ops.relu_mask(x)
    assert torch.equal(ops.relu(x).view(torch.int16), expected)
    assert torch.equal(y.view(torch.int16), expected)
    assert torch.equal(mask, ops.relu_mask_reference(x)[1])
    assert torch.equal(ops.relu_mask_backward(torch.ones_like(x), mask, [1]), (~(x <= 0)).to(dtype))


def test_a_row_of_one_has_no_gradient(level: str) -> None:
    """grad - mean(grad) is exactly 0, however the compiler fuses products."""
    x, w, b = torch.randn(1000, 1), torch.randn(1), torch.randn(1)
    _, statistics = ops.layer_norm_forward(x, w, b)
    grad = torch.randn(1000, 1)
    assert not ops.layer_norm_backward(grad, x, statistics, w, b)[0].any()


def test_equal_terms_cancel(level: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.randn(1000).to(dtype)
        assert not ops.axpby(x, x, 0.1, -0.1).any()


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, -0x7FFFFF])
def test_every_nan_of_a_parameter_stays_one(level: str, bits: int) -> None:
    """Rounding to bfloat16 carries into the exponent where the payload is all ones."""
    nan = torch.full((67,), bits, dtype=torch.int32).view(torch.float32)
    x, zeros = torch.randn(3, 67).bfloat16(), torch.zeros(67)
    assert ops.layer_norm(x, nan, zeros).isnan().all()
    assert ops.layer_norm(x, zeros, nan).isnan().all()
    assert ops.rms_norm(x, nan).isnan().all()
    statistics = ops.layer_norm_forward(x)[1]
    assert ops.layer_norm_backward(x, x, statistics, nan, None)[0].isnan().all()
