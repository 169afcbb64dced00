"""layer_norm and add_layer_norm of halves over so many rows that on CUDA two go together, some of them far from 0."""

from __future__ import annotations

import pytest
import torch
from rules import rows_by_twos

import fastops
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

# Twice as many rows as a card of 132 multiprocessors has at once, for others have up to 148. Of an odd number one is
# alone.
PROBLEMS = sorted({(2 * rows | 1, n) for norm, _, rows, n in rows_by_twos("bf16", "h200") if norm == "layer"})
DISTANCES = (0.0, 1.0, -3.9, 4.1, 30.0, -1000.0)  # of the mean from 0, in standard deviations


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("rows", "n", "residual"),
    [(rows, n, residual) for rows, n in PROBLEMS for residual in (False, True) if n <= 4096 or not residual],
)
def test_values_and_rows_alone(rows: int, n: int, residual: bool, dtype: torch.dtype, cuda: torch.device) -> None:
    make = Make(cuda, dtype, seed=n)
    noise = make(100, n).float().repeat(-(-rows // 100), 1)[:rows]
    distances = torch.tensor(DISTANCES, device=cuda).repeat(rows)[:rows, None]
    x = (noise + distances).to(dtype)
    weight, bias = make(n), make(n)

    def results(some: slice) -> tuple[torch.Tensor, torch.Tensor]:
        if residual:
            return fastops.add_layer_norm(x[some], x[some], (n,), weight, bias)
        return fastops.layer_norm(x[some], (n,), weight, bias), x[some]

    y, normalised = results(slice(None))
    for some in (slice(0, 1), slice(1, 7), slice(rows - 2, rows)):
        assert same_bits(results(some)[0], y[some])
    truth = formulas.layer_norm(normalised.double(), (n,), weight.double(), bias.double())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), truth, rtol=0.55 * eps, atol=0.05 * eps)
    for some in (slice(0, 6), slice(rows - 6, rows)):
        assert ulps(y[some], truth[some].cpu()) < 0.55
