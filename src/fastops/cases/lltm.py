"""Inputs of lltm, and its formula."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import LAYOUTS, SIZES, Layout, Make


def plain(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    gates = torch.cat([old_h, input], 1) @ weights.mT + bias
    gate_in, gate_out, candidate = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(candidate) * torch.sigmoid(gate_in)
    return torch.tanh(new_cell) * torch.sigmoid(gate_out), new_cell


def samples() -> Iterator[Sample]:
    def sample(
        name: str,
        batch: int,
        features: int,
        state: int,
        row_bias: bool = False,
        layout: Layout | None = None,
        tiny: bool = False,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            scale = max(state + features, 1) ** -0.5
            of = (1e-2 if make.dtype == torch.float16 else 1e-5) if tiny else 1.0
            bias = make(3 * state, scale=of)
            return (
                make(batch, features, layout=layout, scale=of),
                make(3 * state, state + features, scale=scale, layout=layout),
                bias.view(1, -1) if row_bias else bias,
                make(batch, state, layout=layout, scale=of),
                make(batch, state, layout=layout, scale=of),
            )

        return Sample(name, build, **flags)

    yield sample("small", 3, 4, 5, row_bias=True, small=True)
    yield sample("small_flat_bias", 2, 1, 3, small=True)
    for state in SIZES[1:]:
        yield sample(f"state{state}", 5, 7, state)
    yield sample("no_rows", 0, 4, 5)
    yield sample("no_features", 3, 0, 5)
    yield sample("no_state", 3, 4, 0)
    yield sample("one_row", 1, 32, 128)
    yield sample("rows17", 17, 40, 140)
    yield sample("tiny", 37, 9, 33, tiny=True)
    yield sample("many_features", 3, 530, 9)
    yield sample("vectors", 67, 3, 72)
    yield sample("rows4099", 4099, 3, 17, large=True)
    for layout in LAYOUTS:
        yield sample(layout.__name__, 37, 9, 33, layout=layout)


def problem(make: Make, batch: int, features: int, state: int | None = None) -> tuple[Any, ...]:
    state = features if state is None else state
    weights = make(3 * state, state + features, scale=(state + features) ** -0.5)
    return make(batch, features), weights, make(3 * state), make(batch, state), make(batch, state)


def raw(make: Make, rows: int, n: int) -> list[RawCall]:
    gates, bias, cell = make(rows, 3 * n), make(3 * n), make(rows, n)
    backward = (make(rows, n), make(rows, n), gates, bias, cell)
    return [
        RawCall("lltm_cell", (gates, bias, cell), row_outputs=(0, 1), shared=(1,)),
        *(
            RawCall("lltm_cell_backward", (*backward, learns), row_outputs=(0, 2), shared=(3,))
            for learns in (True, False)
        ),
    ]
