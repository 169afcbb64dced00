"""The norms over rows that start at any element: a row's bits depend neither on its place nor on the rows beside it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from added import every_added, inputs
from placed import placed
from rules import lengths

import fastops
from fastops.cases import DTYPES, Make
from fastops.cases import norms as formulas
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)

# The bounds of the CUDA kernels' rules, some lengths between them, and all that a vector of the CPU's may leave.
RAGGED = tuple(sorted({*range(1, 41), 403, 1500, 3001, *lengths("row", "words", "elements", most=20000)}))
WHOLE = lengths("row", "16 bytes", dtypes=("bf16", "f32"), most=40000)


@every_added
@every_dtype
@pytest.mark.parametrize("n", RAGGED)
def test_a_rows_bits_do_not_depend_on_where_it_lies(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    make = Make(device, dtype)
    x, r, affine = inputs(make, parameters, rows=1, n=n)
    wide = [t.double() for t in (added(x, r, (n,))[1], *affine)]
    truth = getattr(formulas, norm.__name__)(wide[0], (n,), *wide[1:], eps=1e-3)
    expected, total = added(x, r, (n,), *affine, 1e-3)
    assert same_bits(total, x + r)
    torch.testing.assert_close(
        expected.double(), truth, rtol=8 * torch.finfo(dtype).eps, atol=16 * torch.finfo(dtype).eps
    )
    alone = norm(total, (n,), *affine, 1e-3)
    for k, (start, gap) in enumerate(itertools.product(range(0, 8, 3 if n > 40 else 1), (0, 1, 6))):
        # Each row starts at another place in 16 bytes, where n is odd. On CUDA also more rows than multiprocessors.
        rows = 200 if device.type == "cuda" and k % 2 else 9
        moved = [placed(p[None], (start * (j + 1) + k) % 8, 0)[0] for j, p in enumerate(affine)]
        many_x = placed(x.expand(rows, n), start, gap)
        many_r = placed(r.expand(rows, n), (start + k) % 8, (gap + k) % 3)
        out, many_total = added(many_x, many_r, (n,), *moved, 1e-3)
        assert same_bits(out, expected.expand(rows, n).contiguous())
        assert same_bits(many_total, total.expand(rows, n).contiguous())
        of_total = norm(placed(total.expand(rows, n), start, gap), (n,), *moved, 1e-3)
        assert same_bits(of_total, alone.expand(rows, n).contiguous())


@every_added
@pytest.mark.parametrize("n", [61, 403, 1500, 3001, 5003, *WHOLE])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rows_bits_do_not_depend_on_how_many_there_are(
    added: Any, norm: Any, parameters: int, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    """A block has one row or several, by their number; parameters have both dtypes that they may have."""
    rows_in_all = 300 if device.type == "cpu" else 5001 if n <= 1024 else 1100
    x, r, affine = inputs(Make(device, dtype), parameters, rows=rows_in_all, n=n)
    for given in (affine, [p.float() for p in affine]):
        outputs = (*added(x, r, (n,), *given), norm(x, (n,), *given))
        for rows in (*map(slice, (1, 100, 140, 250, 1000)), slice(131, 133), slice(-1, None)):
            some = (*added(x[rows], r[rows], (n,), *given), norm(x[rows], (n,), *given))
            assert all(same_bits(a, b[rows]) for a, b in zip(some, outputs, strict=True))


@every_dtype
@pytest.mark.parametrize("n", [3, 61, 201, 769, 1501, 8191])
def test_what_is_not_finite_stays_in_its_row(dtype: torch.dtype, n: int, device: torch.device) -> None:
    make = Make(device, dtype)
    x, _, affine = inputs(make, 2, rows=9, n=n)
    for op, given in ((fastops.layer_norm, affine), (fastops.rms_norm, affine[:1])):
        clean = op(x, (n,), *given)
        for value in (torch.nan, torch.inf, -torch.inf):
            dirty = x.clone()
            dirty[1::2] = value
            out = op(dirty, (n,), *given)
            assert same_bits(out[::2].contiguous(), clean[::2].contiguous())
            assert out[1::2].isnan().all()


@every_dtype
@pytest.mark.parametrize("n", [5, 101, 769, 1501, 8191])
def test_ragged_rows_with_few_parameters(dtype: torch.dtype, n: int, device: torch.device) -> None:
    """None of them, one of them, and float32 beside halves: as with ones, zeros and all in float32."""
    make = Make(device, dtype)
    x, _, (w, b) = inputs(make, 2, rows=5, n=n)
    one, zero = torch.ones_like(w), torch.full_like(b, -0.0)
    for weight, bias in itertools.product((w, None), (b, None)):
        found = fastops.layer_norm(x, (n,), weight, bias)
        filled = fastops.layer_norm(x, (n,), one if weight is None else weight, zero if bias is None else bias)
        assert same_bits(found, filled)
    assert same_bits(fastops.rms_norm(x, (n,)), fastops.rms_norm(x, (n,), one))
    if dtype in (torch.float16, torch.bfloat16):
        narrow, wide = (fastops.layer_norm(x, (n,), *p) for p in ((w, b), (w.float(), b.float())))
        assert same_bits(narrow, wide)
        places = [placed(p.float()[None], start, 0)[0] for p, start in ((w, 1), (b, 3))]
        assert same_bits(fastops.layer_norm(x, (n,), *places), wide)
