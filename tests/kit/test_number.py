"""Numbers of NumPy's, and what else is one, in every call of the kit; what is none is an error with the op's name."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from common import needs_compiler

from fastops import kit
from fastops.kit.extent import Launch
from fastops.kit.number import integer, real, truth

swish = kit.elementwise("number_swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
power = kit.reduction("number_power(x, *, s=1.0)", map="s * x * x", post="sqrt(a)")
scale = kit.op(
    "number::scale(Tensor x, float a=2.0, int k=1, bool neg=False, int[] more=[], float? by=None) -> Tensor",
    reference=lambda x, a, k, neg, more, by: x * a * k * (-1 if neg else 1) * (by or 1) + sum(more),
)

TWO = [np.float16(2), np.float32(2), np.float64(2), np.int8(2), np.int64(2), np.array(2), np.array(2.0), Fraction(2)]
ONE = [np.int8(1), np.int64(1), np.uint8(1), np.bool_(True), np.array(1), True]
NONE = [torch.tensor(2.0), "2", b"2", 2j, np.complex64(2), np.array(2j), np.array([2.0]), [2], object()]
HALF, BY, TIMES = np.float32(0.5), np.float32(1.5), np.int64(2)


@kit.elementwise
def shifted(x, *, by=BY, times=TIMES):  # type: ignore[no-untyped-def]
    return x * times + by + HALF


@pytest.mark.parametrize("value", [*TWO, Decimal(2)], ids=lambda v: f"{type(v).__name__}{getattr(v, 'dtype', '')}")
def test_reals(value: Any) -> None:
    x = torch.rand(3, 4)
    assert type(real(value)) in (int, float)
    assert torch.equal(swish(x, beta=value), swish(x, beta=2.0))
    assert torch.equal(power(x, dim=1, s=value), power(x, dim=1, s=2.0))
    assert torch.equal(scale(x, value, by=value), scale(x, 2.0, by=2.0))
    assert torch.equal(shifted(x, by=value), 2 * x + 2.5)


@pytest.mark.parametrize("value", ONE, ids=lambda v: f"{type(v).__name__}{getattr(v, 'dtype', '')}")
def test_integers(value: Any) -> None:
    x = torch.rand(3, 4)
    assert integer(value) == 1
    assert isinstance(integer(value), int)
    for dim in (value, (value,), [value]):
        assert torch.equal(power(x, dim=dim), power(x, dim=1))
    assert torch.equal(scale(x, 2.0, value, more=[value]), scale(x, 2.0, 1, more=[1]))


@pytest.mark.parametrize("value", [np.bool_(True), np.array(True)], ids=["scalar", "array"])
def test_truth(value: Any) -> None:
    x = torch.rand(3, 4)
    assert truth(value) is True
    assert power(x, dim=1, keepdim=value).shape == (3, 1)
    assert torch.equal(scale(x, neg=value), scale(x, neg=True))


def test_defaults_and_numbers_of_a_decorated_function() -> None:
    x = torch.rand(3)
    assert torch.equal(shifted(x), x * 2 + 1.5 + 0.5)
    assert shifted.scalars == {"by": 1.5, "times": 2.0}


def test_identity() -> None:
    op = kit.reduction("number_identity(x)", reduce="max(a, b)", identity=np.float32(-5))  # type: ignore[arg-type]
    assert op(torch.empty(0)) == -5


@pytest.mark.parametrize("value", NONE, ids=lambda v: f"{type(v).__name__}{getattr(v, 'dtype', '')}")
def test_what_is_none(value: Any) -> None:
    x = torch.rand(3, 4)
    calls: dict[str, Callable[[], Any]] = {
        r"^\[number_swish\] beta must be": lambda: swish(x, beta=value),
        r"^\[number_power\] s must be": lambda: power(x, s=value),
        r"^\[number_power\] dim must be an integer": lambda: power(x, dim=(value,)),
        r"^\[number_power\] keepdim must be a bool": lambda: power(x, keepdim=value),
        r"^\[scale\] a must be": lambda: scale(x, value),
        r"^\[scale\] k must be an integer": lambda: scale(x, k=value),
        r"^\[scale\] neg must be a bool": lambda: scale(x, neg=value),
        r"^\[scale\] by must be": lambda: scale(x, by=value),
        r"^\[f\] identity must be": lambda: kit.reduction("f(x)", identity=value),
    }
    for message, call in calls.items():
        with pytest.raises(TypeError, match=message):
            call()


@needs_compiler
def test_arguments_of_a_kernel() -> None:
    fill = kit.cpp_op(
        "void fill(double* y, int64_t n, float a, bool b, int k) { while (n--) y[n] = b ? a * k : -1; }",
        "fill",
        "double* y, int64 n, float a, bool b, int k",
    )
    y = torch.empty(3, dtype=torch.float64)
    fill(y, np.int64(3), np.float32(2.5), np.bool_(True), np.int8(2))
    assert y.tolist() == [5.0] * 3
    fill(y, np.array(3), np.float64(2.5), True, np.bool_(True))
    assert y.tolist() == [2.5] * 3
    for wrong, message in (
        ((y, np.float32(3), 1.0, True, 1), r"^\[fill\] n must be an integer, got float32"),
        ((y, 3, "1", True, 1), r"^\[fill\] a must be a number, got str"),
        ((y, 3, 1j, True, 1), r"^\[fill\] a must be a real number, got complex"),
        ((y, 3, np.complex64(1), True, 1), r"^\[fill\] a must be a real number, got complex64"),
        ((y, 3, np.array([1.0, 2.0]), True, 1), r"^\[fill\] a must be a number, got ndarray"),
        ((y, 3, torch.tensor(1.0), True, 1), r"^\[fill\] a must be a number, got Tensor \(use \.item\(\)"),
    ):
        with pytest.raises(kit.KitError, match=message):
            fill(*wrong)


def test_sizes_of_a_launch() -> None:
    launch = Launch("f", ["n", "m"], np.int64(4), (np.int32(32), "m"), lambda n, m: np.int64(8))  # type: ignore
    assert launch((np.int32(70000), np.int64(4))) == ((4, 1, 1), (32, 4, 1), 8)
    square = Launch("f", ["n"], "ceil(n * n / 1000000)", 32, 0)
    assert square((np.int32(70000),)) == ((4900, 1, 1), (32, 1, 1), 0)  # which 32 bits do not hold
    with pytest.raises(kit.KitError, match=r"^\[f\] a size must be an integer, .*, got float32"):
        Launch("f", ["n"], np.float32(4), 1, 0)  # type: ignore[arg-type]
