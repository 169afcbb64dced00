"""layer_norm of halves over so many rows that on CUDA two go together, some of them far from 0."""

from __future__ import annotations

import pytest
import torch

import fastops
from fastops.cases import Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.checks import same_bits

# Rows of two to eight warps, whole and not, and of two to sixteen blocks; odd numbers of them, of which one is left alone.
PROBLEMS = [(2801, n) for n in (776, 1024)] + [(1201, n) for n in (1032, 1280, 2048, 3080, 3584, 4096)]
PROBLEMS += [(601, n) for n in (12296, 16384)] + [(301, n) for n in (24584, 40000, 65536, 131072)]
DISTANCES = (0.0, 1.0, -3.9, 4.1, 30.0, -1000.0)  # of the mean from 0, in standard deviations


@pytest.mark.parametrize("residual", [False, True], ids=["input", "sum"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("rows", "n"), PROBLEMS)
def test_values_and_rows_alone(rows: int, n: int, dtype: torch.dtype, residual: bool, cuda: torch.device) -> None:
    make = Make(cuda, dtype, seed=n)
    distances = torch.tensor(DISTANCES, device=cuda).repeat(rows)[:rows, None]
    x = (make(rows, n).float() + distances).to(dtype)
    weight, bias = make(n), make(n)
    if residual:
        half = (x.float() / 2).to(dtype)
        y, x = fastops.add_layer_norm(half, half, (n,), weight, bias)
        alone = [fastops.add_layer_norm(half[some], half[some], (n,), weight, bias)[0] for some in few_of(rows)]
    else:
        y = fastops.layer_norm(x, (n,), weight, bias)
        alone = [fastops.layer_norm(x[some], (n,), weight, bias) for some in few_of(rows)]
    for some, few in zip(few_of(rows), alone, strict=True):
        assert same_bits(few, y[some])
    for part in (slice(begin, begin + 100) for begin in range(0, rows, 100)):
        truth = formulas.layer_norm(x[part].double(), (n,), weight.double(), bias.double())
        assert ulps(y[part], truth.cpu()) < 0.55


def few_of(rows: int) -> list[slice]:
    return [slice(0, 1), slice(1, 7), slice(rows - 2, rows)]
