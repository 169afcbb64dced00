"""Few long rows on the CPU: their segments are shared out over the threads, which changes no bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fastops.cases import DTYPES
from fastops.cases.norms import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM, Norm
from fastops.selftest.bits import same_bits

ALL = (True, True, True)
# 17 rows are two chunks of the backward.
PROBLEMS = [(rows, n, ALL) for rows, n in ((1, 100003), (3, 100003), (1, 1 << 20), (3, 1 << 20), (17, 9001))] + [
    (rows, n, needs) for rows, n in ((1, 100003), (17, 9001)) for needs in ((True, False, False), (False, True, True))
]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def numbers() -> Tensor:
    return torch.randn(4, 3 << 20, generator=torch.Generator().manual_seed(0))


def results(norm: Norm, tensors: tuple[Tensor, ...], weight: Tensor, needs: tuple[bool, ...]) -> list[Tensor]:
    """All that the raw ops return, statistics and parameters' gradients too."""
    x, r, grad, grad_sum = tensors
    parameters = (weight, weight.flip(0))[: 1 + norm.layer]
    forward, backward = (getattr(torch.ops.fastops, f"{norm.name}_{way}") for way in ("forward", "backward"))
    outputs = forward(x, *[r] * norm.residual, *parameters)
    kept, statistics = (outputs[1] if norm.residual else x), outputs[1 + norm.residual :]
    needed = needs[: 2 + norm.layer]
    return [*outputs, *backward(grad, *[grad_sum] * norm.residual, kept, *statistics, *parameters, *needed)]


@pytest.mark.parametrize("norm", [LAYER_NORM, RMS_NORM, ADD_LAYER_NORM, ADD_RMS_NORM], ids=lambda norm: norm.name)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n", "needs"), PROBLEMS)
def test_threads_change_no_bit(
    norm: Norm, dtype: torch.dtype, rows: int, n: int, needs: tuple[bool, ...], level: str, numbers: Tensor
) -> None:
    """One thread takes whole rows; two share the segments of 1 and 3 rows, and the backward's of few rows."""
    x, r, grad, grad_sum = (t[: rows * n].view(rows, n).to(dtype) for t in numbers)
    tensors = (x + 3, r, grad, grad_sum)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(results(norm, tensors, numbers[0, -n:].to(dtype), needs))
    for others in found[1:]:
        for a, b in zip(found[0], others, strict=True):
            assert same_bits(a, b)
