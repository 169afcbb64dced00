"""The norms over rows of several parts on CUDA: those of the blocks of a cluster, or of one block in turn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from added import every_added, inputs
from rules import lengths
from torch import Tensor

import fastops
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.bits import same_bits

# Float32 rows of up to 8192 elements have one part. Cards with clusters and without have rules of their own.
LONG = [n for n in lengths("row", "16 bytes", "8 bytes", "words", dtypes=("bf16", "f32"), most=300000) if n > 8192]
LONG = sorted({*LONG, 40000, 73736, 122888, 200008})


@every_added
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("n", LONG)
@pytest.mark.parametrize("given", ["same dtype", "float32", "none"])
def test_values_gradients_and_rows_alone(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, given: str, cuda: torch.device
) -> None:
    x, r, affine = inputs(Make(cuda, dtype), parameters, rows=5, n=n)
    affine = [] if given == "none" else [p.float() if given == "float32" else p for p in affine]
    grad = Make(cuda, dtype, seed=1)(5, n)

    def results(rows: slice) -> list[Tensor]:
        leaf = x[rows].clone().requires_grad_()
        out, total = added(leaf, r[rows], (n,), *affine, eps=1e-3)
        plain = norm(total.detach(), (n,), *affine, eps=1e-3)
        return [out.detach(), plain, torch.autograd.grad(out, leaf, grad[rows])[0]]

    wide = (x + r).double().requires_grad_()
    truth = getattr(formulas, norm.__name__)(wide, (n,), *(p.double() for p in affine), eps=1e-3)
    (of_input,) = torch.autograd.grad(truth, wide, grad.double())
    found = results(slice(None))
    eps = torch.finfo(dtype).eps
    for ours, true in zip(found, (truth, truth, of_input), strict=True):
        scale = true.detach().abs().median()
        torch.testing.assert_close(ours.double(), true.detach(), rtol=8 * eps, atol=16 * eps * float(scale))
    for rows in (slice(0, 1), slice(3, 5)):
        for alone, together in zip(results(rows), found, strict=True):
            assert same_bits(alone, together[rows])


# Three and five blocks of halves, five and ten of float32.
every_shared = pytest.mark.parametrize("n", [20000, 40000])
of_both_widths = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)


@every_added
@every_shared
@of_both_widths
def test_rows_apart(added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, device: torch.device) -> None:
    x, r, affine = inputs(Make(device, dtype), parameters, rows=5, n=n)
    out, total = added(x, r, (n,), *affine)
    apart = [torch.cat([t, t.new_full((5, gap), torch.nan)], 1)[:, :n] for t, gap in ((x, 16), (r, 24))]
    assert not apart[0].is_contiguous()
    assert same_bits(added(*apart, (n,), *affine)[0], out)
    assert same_bits(added(*apart, (n,), *affine)[1], total)
    assert same_bits(norm(apart[0], (n,), *affine), norm(x, (n,), *affine))


@every_shared
@of_both_widths
@pytest.mark.parametrize("given", ["weight", "bias"])
def test_one_parameter_of_two(given: str, dtype: torch.dtype, n: int, device: torch.device) -> None:
    x, r, (parameter, _) = inputs(Make(device, dtype), 2, rows=5, n=n)
    truth = formulas.layer_norm((x + r).double(), (n,), **{given: parameter.double()})
    out, total = fastops.add_layer_norm(x, r, (n,), **{given: parameter})
    eps = torch.finfo(dtype).eps
    for ours in (out, fastops.layer_norm(total, (n,), **{given: parameter})):
        torch.testing.assert_close(ours.double(), truth, rtol=8 * eps, atol=16 * eps)


@every_added
@every_shared
@of_both_widths
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=str)
def test_one_element_that_is_not_finite_stays_in_its_row(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, value: float, device: torch.device
) -> None:
    x, r, affine = inputs(Make(device, dtype), parameters, rows=5, n=n)
    finite = added(x, r, (n,), *affine)[0], norm(x, (n,), *affine)
    x[2, n - 3] = value
    truth = getattr(formulas, norm.__name__)
    for ours, before, wide in zip(
        (added(x, r, (n,), *affine)[0], norm(x, (n,), *affine)), finite, (x + r, x), strict=True
    ):
        for rows in (slice(0, 2), slice(3, 5)):
            assert same_bits(ours[rows], before[rows])
        expected = truth(wide[2:3].double(), (n,), *(p.double() for p in affine))
        assert torch.equal(ours[2:3].isfinite(), expected.isfinite())
