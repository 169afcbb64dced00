"""A row's result in kit.reduction: the same bits wherever it lies and whatever lies beside it, and torch's NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from common import DTYPES
from torch import Tensor

from fastops import kit

SUM = kit.reduction("order_sum(x)", map="x * x", post="sqrt(a)")
RAW = kit.reduction("order_raw(x)")
PRODUCT = kit.reduction("order_product(x)", reduce="a * b")
MAX = kit.reduction("order_max(x)", reduce="max(a, b)")
SOFT = kit.reduction("order_soft(x)", map="exp(x)", post="log(a)")  # whose functions are others for vectors
JOINED = kit.reduction("order_joined(x)", map="abs(x)", reduce="hypot(a, b)", identity=0.0)
OPS = {op.name: op for op in (SUM, RAW, PRODUCT, MAX, SOFT, JOINED)}

LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 80, 100, 128, 129, 192, 1000, 33000)

# From rows [9, n] to the same rows in other places, and the dimension that is reduced.
LAYOUTS: dict[str, Callable[[Tensor], tuple[Tensor, int]]] = {
    "apart": lambda x: (torch.cat([x, x[:, :1]], 1)[:, :-1], 1),
    "every other element": lambda x: (x.repeat_interleave(2, 1)[:, ::2], 1),
    "columns": lambda x: (x.t().contiguous(), 0),
    "columns among others": lambda x: (torch.cat([x.t(), x.t()], 1)[:, :9], 0),
    "wide columns": lambda x: (x.repeat(9, 1).t().contiguous(), 0),
    "middle": lambda x: (x.view(3, 3, -1).transpose(1, 2).contiguous(), 1),
    "wide middle": lambda x: (x.repeat(8, 1).view(2, 36, -1).transpose(1, 2).contiguous(), 1),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_wherever_it_lies(name: str, dtype: torch.dtype) -> None:
    op = OPS[name]
    for n in LENGTHS:
        x = (torch.rand(9, n) + 0.5).to(dtype)
        alone = torch.stack([op(row.clone()) for row in x])
        assert torch.equal(op(x, dim=1), alone), n
        assert torch.equal(op(x.repeat(50, 1), dim=1), alone.repeat(50)), n
        for title, place in LAYOUTS.items():
            rows, dim = place(x)
            got = op(rows, dim=dim).flatten()
            assert torch.equal(got, alone.repeat(len(got) // 9)), (n, title)


@pytest.mark.parametrize("along", [0, 1])
def test_threads_change_no_bit(along: int) -> None:
    before = torch.get_num_threads()
    try:
        for n, rows in ((3, 30000), (64, 3000), (1000, 700), (70000, 5)):
            x = torch.randn((n, rows) if along == 0 else (rows, n))
            results = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                results.append(RAW(x, dim=along))
            assert all(torch.equal(results[0], y) for y in results)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_short_length(device: torch.device, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for n in (*range(1, 36), 47, 48, 63, 64, 65, 100, 127, 129, 1000):
        for rows in (1, 300):
            x = torch.randn(rows, n, device=device).to(dtype)
            truth, tolerance = x.double(), 8 * eps
            for y, dim in ((x, 1), (x.t().contiguous(), 0)):
                torch.testing.assert_close(
                    RAW(y, dim=dim).double(), truth.sum(1), rtol=tolerance, atol=tolerance * (1 + n**0.5)
                )
                assert torch.equal(MAX(y, dim=dim), x.amax(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_nan_of_one_element_is_the_rows(device: torch.device, dtype: torch.dtype, kind: str) -> None:
    op = kit.reduction(f"nan_{kind}(x)", reduce=f"{kind}(a, b)")
    torchs = getattr(torch, f"a{kind}")
    for n in (1, 2, 3, 5, 16, 17, 40, 64, 65, 100, 200):
        x = torch.randn(n, n, device=device).to(dtype)
        x.diagonal().fill_(torch.nan)
        rows = torch.cat([x, torch.randn(5, n, device=device).to(dtype), torch.full_like(x[:1], -torch.inf)])
        for y, dim in ((rows, 1), (rows.t().contiguous(), 0)):
            torch.testing.assert_close(op(y, dim=dim), torchs(rows, 1), rtol=0, atol=0, equal_nan=True)
