"""The norms behind a sum, for the tests of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

import fastops
from fastops.cases import Make

N = 61

# Each op behind a sum, and the norm of what was summed.
ADDED: dict[str, tuple[Callable[..., Any], Callable[..., Tensor], int]] = {
    "add_layer_norm": (fastops.add_layer_norm, fastops.layer_norm, 2),
    "add_rms_norm": (fastops.add_rms_norm, fastops.rms_norm, 1),
}
every_added = pytest.mark.parametrize(("added", "norm", "parameters"), ADDED.values(), ids=ADDED)


def inputs(make: Make, parameters: int, rows: int = 9, n: int = N) -> tuple[Tensor, Tensor, list[Tensor]]:
    return make(rows, n), make(rows, n, scale=7.0), [make(n) for _ in range(parameters)]
