from __future__ import annotations

import pytest
import torch

from fastops.cases import DTYPES
from fastops.selftest.bits import all_alike, all_same, bits, other_bits, same_bits


@pytest.mark.parametrize("dtype", [*DTYPES, torch.complex64, torch.complex128, torch.bool], ids=str)
def test_one_bit_is_enough(dtype: torch.dtype) -> None:
    x = torch.ones(3, 5, dtype=dtype)
    other = x.clone()
    other[2, 4] = 0
    assert same_bits(x, x.clone())
    assert not same_bits(x, other)
    assert bits(x)[bits(x) != bits(other)].numel()
    assert other_bits([x, other], [x, x])
    assert not other_bits([x, other], [x, other])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_nan_is_nan_and_zero_has_a_sign(dtype: torch.dtype) -> None:
    nan, zero = torch.full((3,), torch.nan, dtype=dtype), torch.zeros(3, dtype=dtype)
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", [7, 8])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_slice_that_differs_in_its_last_number(dtype: torch.dtype, columns: int, offset: int) -> None:
    slices = torch.zeros(4 * 3 * columns + offset, dtype=dtype)[offset:].view(4, 3, columns)
    assert all_alike(slices)
    slices[2, 2, columns - 1] = -0.0
    assert not all_alike(slices)
    assert all_alike(slices[:1])


def test_each_of_several() -> None:
    x = torch.arange(6.0).view(2, 3)
    given = [x, x.half(), x[:0], x.double(), x > 2]
    assert all_same(given, [v.clone() for v in given])
    changed = [-x, x.half(), x[:0], x, ~(x > 2)]
    assert [all_same([a], [b]) for a, b in zip(given, changed, strict=True)] == [False, True, True, False, False]
    assert not all_same(given, changed)
    assert other_bits(given, changed)
    assert all_same([], [])
