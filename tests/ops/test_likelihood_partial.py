"""Parts of the classes, whatever they are: merged they give the whole's results, and the whole's gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from fastops.cases import DTYPES, Make
from fastops.selftest.bits import same_bits

raw = torch.ops.fastops
CUTS = ((0, 64, 100, 301), (0, 1, 301), (0, 301))
OPTIONS = tuple(itertools.product((1.0, -1.5), (None, 3.0), (0.0, 0.2), (False, True)))
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def made(dtype: torch.dtype, device: torch.device, rows: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    make = Make(device, dtype)
    target = make.integers(rows, below=n)
    target[1::4] = -100
    return make(rows, n, scale=3.0), target, make(n).abs_().add_(0.1)


def parts_of(x: Tensor, target: Tensor, cuts: tuple[int, ...], weight: Tensor | None, *options: Any) -> Tensor:
    n = x.shape[1]
    return torch.stack(
        [
            raw.likelihood_partial(x[:, a:b], target, 1, a, n, weight, -100, *options)
            for a, b in itertools.pairwise(cuts)
        ]
    )


def near(a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-12 if dtype == torch.float64 else 3e-5
    torch.testing.assert_close(a.double().cpu(), b.double().cpu(), rtol=tolerance, atol=tolerance)


@every_dtype
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize(("rows", "n"), [(37, 301), (1, 301)])
def test_cross_entropy(dtype: torch.dtype, cuts: tuple[int, ...], rows: int, n: int, device: torch.device) -> None:
    x, target, w = made(dtype, device, rows, n)
    for scale, softcap, smoothing, weighted in OPTIONS:
        weight = w if weighted else None
        parts = parts_of(x, target, cuts, weight, smoothing, scale, softcap)
        options = (1, -100, smoothing, scale, softcap, 0.1)
        joined = raw.likelihood_join(parts, scale, softcap, False).unsqueeze(0)
        whole = raw.cross_entropy(x.double(), target, None if weight is None else weight.double(), *options)
        for found in (parts, joined):
            merged = raw.cross_entropy_merge(found, target, n, weight, *options)
            for a, b in zip(merged, whole, strict=True):
                near(a, b, dtype)
        _, lse, total = raw.cross_entropy(x, target, weight, *options)
        grad = torch.ones((), device=device, dtype=dtype)
        of_whole = raw.cross_entropy_backward(grad, None, x, target, lse, total, weight, *options)
        for begin, end in itertools.pairwise(cuts):
            arguments = (target, lse, total, weight, *options, begin, n)
            z = x[:, begin:end]
            of_part = raw.cross_entropy_backward(grad, None, z, *arguments)
            torch.testing.assert_close(of_part, of_whole[:, begin:end])
            in_place = z.contiguous() if device.type == "cpu" else aligned_rows(z)
            raw.cross_entropy_backward_out(grad, in_place, *arguments, in_place)
            assert same_bits(in_place, of_part)


def aligned_rows(z: Tensor) -> Tensor:
    room = z.new_zeros(z.shape[0], (z.shape[1] + 15) // 16 * 16)
    return room[:, : z.shape[1]].copy_(z)


@every_dtype
@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_log_prob(dtype: torch.dtype, cuts: tuple[int, ...], device: torch.device) -> None:
    x, target, _ = made(dtype, device, 37, 301)
    for scale, softcap in itertools.product((1.0, -1.5), (None, 3.0)):
        parts = parts_of(x, target, cuts, None, 0.0, scale, softcap, True)
        options = (-100, scale, softcap)
        joined = raw.likelihood_join(parts, scale, softcap, True).unsqueeze(0)
        whole = raw.log_prob(x.double(), target, *options, True)
        for found in (parts, joined):
            for a, b in zip(raw.log_prob_merge(found, target, 301, *options, True), whole, strict=True):
                near(a, b, dtype)
        found, entropy, lse = raw.log_prob(x, target, *options, True)
        of_whole = raw.log_prob_backward(found, entropy, x, target, lse, entropy, *options)
        for begin, end in itertools.pairwise(cuts):
            z = x[:, begin:end]
            of_part = raw.log_prob_backward(found, entropy, z, target, lse, entropy, *options, begin, 301)
            torch.testing.assert_close(of_part, of_whole[:, begin:end])
            out = torch.full_like(aligned_rows(z), torch.nan) if device.type == "cuda" else torch.empty_like(of_part)
            raw.log_prob_backward_out(found, entropy, z, target, lse, entropy, *options, begin, 301, out)
            assert same_bits(out, of_part)


@every_dtype
def test_long_rows_by_themselves(dtype: torch.dtype, device: torch.device) -> None:
    """Few long rows are shared out among threads, or among blocks."""
    x, target, _ = made(dtype, device, 2, 70001)
    parts = parts_of(x, target, (0, 40000, 70001), None, 0.0)
    found = raw.cross_entropy_merge(parts, target, 70001)
    for a, b in zip(found, raw.cross_entropy(x.double(), target), strict=True):
        near(a, b, dtype)


def test_what_is_missing(device: torch.device) -> None:
    """A part of -inf alone, ignored rows that hold NaN, a scale of 0, and targets that are no classes."""
    x, target, _ = made(torch.float32, device, 9, 301)
    x[:, 64:100] = -torch.inf
    target[0], target[2:4] = 7, 200
    x[1] = torch.nan
    for cuts in CUTS:
        parts = parts_of(x, target, cuts, None, 0.0)
        assert not parts[:, 1].any()
        loss, lse, _ = raw.cross_entropy_merge(parts, target, 301, None, 0)
        expected = raw.cross_entropy(x, target, None, 0)
        torch.testing.assert_close((loss, lse), expected[:2])
    few = torch.where(target < 0, target, target % 64)
    parts = parts_of(x[:, :64], few, (0, 9, 64), None, 0.0, 0.0)
    _, lse, _ = raw.cross_entropy_merge(parts, few, 64, None, 0, -100, 0.0, 0.0)
    torch.testing.assert_close(lse[0].item(), torch.tensor(64.0).log().item())
    assert lse.isfinite().all()
    wrong = torch.where(target == 7, 301, target)
    parts = parts_of(x, wrong, CUTS[0], None, 0.0)
    if device.type == "cuda":
        assert raw.cross_entropy_merge(parts, wrong, 301, None, 0)[0].isnan().any()
    else:
        with pytest.raises(RuntimeError, match=r"target must be 0 to 300 or ignore_index -100, got 301"):
            raw.cross_entropy_merge(parts, wrong, 301, None, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"first_class": 250}, "input's 100 classes must be some of 301, got first_class 250"),
        ({"target": torch.zeros(5, dtype=torch.int64)}, "target must have shape [9], got [5]"),
        ({"weight": torch.ones(100)}, "weight must have shape [301], got [100]"),
        ({"entropy": True, "label_smoothing": 0.1}, "label_smoothing must be 0 beside an entropy, got 0.1"),
    ],
)
def test_errors(change: dict[str, Any], message: str, device: torch.device) -> None:
    x, target, _ = made(torch.float32, device, 9, 301)
    change = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in change.items()}
    arguments: dict[str, Any] = {"input": x[:, :100], "target": target, "dim": 1, "first_class": 0, "classes": 301}
    with pytest.raises(RuntimeError) as caught:
        raw.likelihood_partial(**arguments | change)
    assert f"[likelihood_partial] {message}" in str(caught.value)


def test_out_must_fit(device: torch.device) -> None:
    x, target, _ = made(torch.float32, device, 9, 301)
    _, lse, total = raw.cross_entropy(x, target)
    arguments = (torch.ones((), device=device), x, target, lse, total, None, 1, -100, 0.0, 1.0, None, 0.0, 0, 301)
    unaligned = x.new_empty(9, 303)[:, 1:302]
    for out in (x.new_empty(9, 300), x.new_empty(9, 301, dtype=torch.float64), x.new_empty(301, 9).t(), unaligned):
        with pytest.raises(RuntimeError, match=r"\[cross_entropy_backward_out\] out must have"):
            raw.cross_entropy_backward_out(*arguments, out)
