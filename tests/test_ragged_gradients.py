"""Gradients of the norms over rows that start at any element."""

from __future__ import annotations

import itertools

import pytest
import torch
from placed import placed
from rules import lengths
from torch import Tensor

from fastops.cases import DTYPES, Make
from fastops.cases.norms import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM, Norm
from fastops.selftest.bits import same_bits

EPS = 1e-3
ALL = (True, True, True)

every_norm = pytest.mark.parametrize(
    "norm", [LAYER_NORM, RMS_NORM, ADD_LAYER_NORM, ADD_RMS_NORM], ids=lambda norm: norm.name
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def statistics_of(norm: Norm, x: Tensor) -> Tensor:
    name = "layer_norm_forward" if norm.layer else "rms_norm_forward"
    return getattr(torch.ops.fastops, name)(x, eps=EPS)[1]


def gradients(
    norm: Norm,
    grads: tuple[Tensor, Tensor],
    x: Tensor,
    statistics: Tensor,
    weight: Tensor | None,
    needs: tuple[bool, bool, bool] = ALL,
) -> tuple[Tensor, ...]:
    op = getattr(torch.ops.fastops, f"{norm.name}_backward")
    given = grads[: 1 + norm.residual]
    return op(*given, x, statistics, *[weight] * (1 + norm.layer), *needs[: 2 + norm.layer], eps=EPS)


def true_gradients(
    norm: Norm, grads: tuple[Tensor, Tensor], x: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    grad, grad_sum, x = grads[0].double(), grads[1].double(), x.double()
    centred = x - x.mean(-1, keepdim=True) if norm.layer else x
    rstd = (centred.square().mean(-1, keepdim=True) + EPS).rsqrt()
    h = centred * rstd
    g = grad if weight is None else grad * weight.double()
    result = g - h * (g * h).mean(-1, keepdim=True)
    if norm.layer:
        result = result - g.mean(-1, keepdim=True)
    result = result * rstd
    return result + grad_sum if norm.residual else result, (grad * h).sum(0), grad.sum(0)


# The bounds of the CUDA kernels' rules, some between them, and all that a vector of the CPU's may leave.
PLACES = tuple(sorted({*range(1, 41), 403, 1501, 3001, *lengths("norm_backward", "words", "elements", most=10000)}))


@every_norm
@every_dtype
@pytest.mark.parametrize("n", PLACES)
def test_a_rows_gradient_does_not_depend_on_where_it_lies(
    norm: Norm, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    make = Make(device, dtype)
    row, grad, grad_sum = (make(1, n) for _ in range(3))
    weight, statistics = make(n), statistics_of(norm, row)
    expected = gradients(norm, (grad, grad_sum), row, statistics, weight)[0]
    rows = 70 if device.type == "cuda" else 9  # each starts at another place in 16 bytes, where n is odd; few and many
    x, g, g_sum = (t.expand(rows, n) for t in (row, grad, grad_sum))
    many = statistics.expand(rows, *statistics.shape[1:]).contiguous()
    for k, (start, gap) in enumerate(itertools.product(range(0, 8, 3 if n > 40 else 1), (0, 1, 6))):
        moved = placed(g, start, gap), placed(g_sum, (start + k) % 8, (gap + k) % 3)
        here = placed(x, (start * 3 + k) % 8, (k + 1) % 4), many, placed(weight[None], (start + k) % 4, 0)[0]
        both = gradients(norm, moved, *here)
        alone = gradients(norm, moved, *here, needs=(True, False, False))
        for found in (both, alone):
            assert same_bits(found[0], expected.expand(rows, n).contiguous())
        for first, again in zip(both, gradients(norm, moved, *here), strict=True):
            assert same_bits(first, again)


@every_norm
@every_dtype
@pytest.mark.parametrize(
    "n", [24, 61, 100, 192, 300, 403, 500, 769, 1000, 1500, 1501, 2048, 3004, 4096, 5000, 5003, 8192]
)
def test_a_rows_gradient_does_not_depend_on_how_many_there_are(
    norm: Norm, dtype: torch.dtype, n: int, device: torch.device
) -> None:
    """Few rows have a kernel of their own."""
    make = Make(device, dtype)
    x, grad, grad_sum = (make(200, n) for _ in range(3))
    statistics = statistics_of(norm, x)
    for weight in (None, make(n), make(n, dtype=make.parameter_dtype)):
        of_all = gradients(norm, (grad, grad_sum), x, statistics, weight)[0]
        for rows in (1, 9, 64, 65):
            for needs in (ALL, (True, False, False)):
                some = gradients(norm, (grad[:rows], grad_sum[:rows]), x[:rows], statistics[:rows], weight, needs)[0]
                assert same_bits(some, of_all[:rows])


@pytest.mark.parametrize("norm", [RMS_NORM, ADD_RMS_NORM], ids=lambda norm: norm.name)
@every_dtype
@pytest.mark.parametrize("n", [24, 100, 300, 1000, 1500, 5000, 20000])
@pytest.mark.parametrize("rows", [1, 64, 65, 300])
def test_an_infinite_weight_makes_no_more_nans_than_it_must(
    norm: Norm, dtype: torch.dtype, n: int, rows: int, device: torch.device
) -> None:
    """What a thread has behind the row's end takes no part, whatever the last weight is."""
    make = Make(device, dtype)
    x, grad, grad_sum = (make(rows, n) for _ in range(3))
    weight = make(n)
    weight[-1] = torch.inf
    found = gradients(norm, (grad, grad_sum), x, statistics_of(norm, x), weight)[0]
    truth = true_gradients(norm, (grad, grad_sum), x, weight)[0]
    torch.testing.assert_close(found.double(), truth, equal_nan=True)
    assert found.isinf().any()


# The last ones leave the most sums in a block's shared memory.
VALUES = (1, 2, 3, 7, 33, 61, 101, 129, 258, 449, 769, 1500, 1501, 4099, 1227, 2047, 2911)


@every_norm
@every_dtype
@pytest.mark.parametrize("rows", [1, 2, 37, 1100])
@pytest.mark.parametrize("n", VALUES)
def test_values(norm: Norm, dtype: torch.dtype, rows: int, n: int, device: torch.device) -> None:
    make = Make(device, dtype)
    x, grad, grad_sum = (placed(make(rows, n), start, rows % 2) for start in (1, 0, 3))
    statistics, wide = statistics_of(norm, x), make.parameter_dtype
    eps = torch.finfo(dtype).eps
    for weight in (None, make(n), make(n, dtype=wide)):
        truth = true_gradients(norm, (grad, grad_sum), x, weight)
        for needs in (ALL, (True, False, False), (False, True, True)):
            found = gradients(norm, (grad, grad_sum), x, statistics, weight, needs)
            for k, (ours, true) in enumerate(zip(found, truth, strict=False)):
                if not needs[k]:
                    continue
                near = 64 * eps * max(1.0, float(true.abs().max()), rows**0.5 if k else 0.0)
                torch.testing.assert_close(ours.double(), true, rtol=8 * eps, atol=near)


@every_norm
@every_dtype
@pytest.mark.parametrize("n", [3, 61, 201, 769, 1501])
def test_what_is_not_finite_stays_in_its_row(norm: Norm, dtype: torch.dtype, n: int, device: torch.device) -> None:
    make = Make(device, dtype)
    x, grad, grad_sum = (make(9, n) for _ in range(3))
    weight = make(n)
    clean = gradients(norm, (grad, grad_sum), x, statistics_of(norm, x), weight)[0]
    for value in (torch.nan, torch.inf, -torch.inf):
        dirty = x.clone()
        dirty[1::2] = value
        found = gradients(norm, (grad, grad_sum), dirty, statistics_of(norm, dirty), weight)[0]
        assert same_bits(found[::2].contiguous(), clean[::2].contiguous())
        assert found[1::2].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("n", [3, 61, 201, 769, 1501])
def test_far_from_0_nothing_overflows(dtype: torch.dtype, n: int, device: torch.device) -> None:
    """The mean times one over the spread would."""
    make = Make(device, dtype)
    grad, x = make(5, n), torch.full((5, n), torch.finfo(dtype).max / 2, dtype=dtype, device=device)
    found = gradients(LAYER_NORM, (grad, grad), x, statistics_of(LAYER_NORM, x), make(n))
    for t in found:
        assert t.isfinite().all()
