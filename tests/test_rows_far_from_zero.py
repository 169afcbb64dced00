"""layer_norm and add_layer_norm of halves of which some rows are far from 0: CUDA sums these twice, beside others."""

from __future__ import annotations

import pytest
import torch
from rules import RowProblem, bands

import fastops
from fastops._plan import CARDS
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

# The shortest and the longest rows of each rule, on cards with clusters and without.
LENGTHS = sorted(
    {
        n
        for card in ("h200", "a100")
        for ns in bands(RowProblem("layer_norm", "bf16", "bf16"), CARDS[card]).values()
        for n in ns
        if n > 2
    }
)
DISTANCES = (0.0, 1.0, -3.9, 4.1, 30.0, -1000.0)  # of the mean from 0, in standard deviations


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("n", LENGTHS)
def test_values_and_rows_alone(n: int, residual: bool, dtype: torch.dtype, cuda: torch.device) -> None:
    """A warp or a block has several short rows, of which some are summed again; the last block is not full."""
    rows = 5401 if n <= 1024 else 301
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
