"""The norms over rows of more than 32 KB, which the blocks of a cluster share on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from added import every_added, inputs
from torch import Tensor

from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.checks import same_bits

# Of two to sixteen blocks of 32 KB, whole and not, in half types or float32; the longest are for other kernels.
LONG = (16392, 24576, 32776, 40000, 65536, 73736, 100000, 122888, 131072, 200008, 262144, 300000)


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
