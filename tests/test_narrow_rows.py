"""The norms over rows of halves that start at 8 bytes and not all at 16, which CUDA reads by vectors of 8."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from added import every_added, inputs
from placed import placed
from rules import lengths

from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.bits import same_bits

# The bounds of the rules, and some lengths between them.
LENGTHS = tuple(sorted({100, 300, 1500, 2500, 12284, *lengths("row", "8 bytes", most=20000)}))


@every_added
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("given", ["same dtype", "float32", "none"])
@pytest.mark.parametrize("n", LENGTHS)
def test_values_and_fewer_rows(
    added: Any, norm: Any, parameters: int, n: int, given: str, dtype: torch.dtype, cuda: torch.device
) -> None:
    # More rows than a card of 148 multiprocessors has at once; the last block is not full where blocks have several.
    rows = 5401 if n <= 2500 else 2701
    x, r, affine = inputs(Make(cuda, dtype), parameters, rows=rows, n=n)
    affine = [] if given == "none" else [p.float() if given == "float32" else p for p in affine]
    x, r = placed(x, 4, 4), placed(r, 8, 12)
    out, total = added(x, r, (n,), *affine)
    plain = norm(total, (n,), *affine)
    truth = getattr(formulas, norm.__name__)(total.double(), (n,), *(p.double() for p in affine))
    assert same_bits(total, x + r)
    eps = torch.finfo(dtype).eps
    for ours in (out, plain):
        torch.testing.assert_close(ours.double(), truth, rtol=0.55 * eps, atol=0.05 * eps)
    for some in (slice(0, 1), slice(7, 44), slice(300, 1300), slice(rows - 2, rows)):
        assert same_bits(added(x[some], r[some], (n,), *affine)[0], out[some])
        assert same_bits(norm(total[some], (n,), *affine), plain[some])
