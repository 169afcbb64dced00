"""Inputs of the elementwise operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .case import RawCall, Sample
from .inputs import LAYOUTS, SIZES, Layout, Make, block, channels_last, reversed_memory, row_slice, stepped, transposed


def samples(scale: float) -> tuple[Sample, ...]:
    def sample(
        name: str, *shape: int, layout: Layout | None = None, scale: float = scale, large: bool = False
    ) -> Sample:
        numel = torch.Size(shape).numel()
        if numel < 8:
            scale = min(scale, 1.0)  # a lone saturated value has no companions to set the scale of its gradient's error
        return Sample(
            name,
            lambda make: (make(*shape, scale=scale, layout=layout),),
            large=large,
            small=shape in ((), (3, 4)),
        )

    return (
        sample("0d"),
        *(sample(f"n{n}", n) for n in SIZES),
        sample("n131072", 131072, large=True),
        *(sample(f"shape{'x'.join(map(str, s))}", *s) for s in ((0, 16), (5, 0), (3, 4), (37, 129), (2, 3, 1, 5))),
        *(sample(layout.__name__, 37, 67, layout=layout) for layout in LAYOUTS),
        sample("vectors", 67, 72, layout=row_slice),  # on CUDA; fewer elements have a thread each
        sample("dims12", *[1] * 10, 3, 5),  # whose strides have no place on the stack
        sample("dims17", *[2] * 17, layout=reversed_memory, large=True),
        sample("vectors3d", 3, 5, 32),
        sample("stepped3d", 5, 7, 9, layout=stepped),
        sample("large_block", 65, 67, 70, layout=block, scale=1.0, large=True),
        sample("channels_last", 2, 5, 3, 7, layout=channels_last),
        sample("permuted4d", 3, 4, 5, 6, layout=lambda t: t.permute(2, 0, 3, 1)),
        sample("tiny_values", 4099, scale=1e-6),
    )


def one_tensor(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return (make(rows, n),)


def unary(name: str, saves_output: bool) -> Callable[[Make, int, int], list[RawCall]]:
    def raw(make: Make, rows: int, n: int) -> list[RawCall]:
        forward = RawCall(name, (make(rows, n),))
        saved = forward.reference()[0] if saves_output else forward.args[0]
        return [forward, RawCall(f"{name}_backward", (make(rows, n), saved))]

    return raw


def relu_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    mask = RawCall("relu_mask", (make(rows, n),))
    grad = make(rows, n)

    def args_of(begin: int, end: int) -> tuple[Any, ...]:
        return grad[begin:end], mask.rows(begin, end).reference()[1]

    backward = RawCall("relu_mask_backward", args_of(0, rows), args_of=args_of)
    return [*unary("relu", saves_output=True)(make, rows, n), mask, backward]


def relu_gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One bit an element."""
    return (torch.empty(-(-outputs[0].numel() // 8), dtype=torch.uint8, device="meta"),)


def axpby_samples() -> tuple[Sample, ...]:
    def sample(
        name: str,
        x: tuple[int, ...],
        y: tuple[int, ...],
        x_layout: Layout | None = None,
        y_layout: Layout | None = None,
        **flags: bool,
    ) -> Sample:
        return Sample(name, lambda make: (make(*x, layout=x_layout), make(*y, layout=y_layout), 3.0, -1.0), **flags)

    return (
        sample("0d", (), ()),
        *(sample(f"n{n}", (n,), (n,)) for n in SIZES),
        sample("n131072", (131072,), (131072,), large=True),
        sample("small", (3, 4), (3, 4), small=True),
        sample("broadcast", (3, 1, 4), (2, 1), small=True),
        sample("scalar_y", (5, 7), ()),
        sample("scalar_x", (), (5, 7)),
        sample("row", (37, 129), (129,)),
        sample("one_row", (37, 129), (1, 129)),
        sample("column", (37, 129), (37, 1)),
        sample("outer", (37, 1), (1, 129)),
        sample("many_rows", (4099, 8), (8,), large=True),
        sample("empty", (0, 5), (5,)),
        sample("empty_to_empty", (3, 0), (1, 1)),
        *(sample(f"{layout.__name__}_x", (37, 67), (37, 67), x_layout=layout) for layout in LAYOUTS),
        *(sample(f"{layout.__name__}_y", (37, 67), (37, 67), y_layout=layout) for layout in LAYOUTS),
        sample("large_block", (65, 67, 70), (65, 67, 70), x_layout=block, y_layout=block, large=True),
        sample("transposed_row", (37, 67), (67,), x_layout=transposed),
        sample("dims10", (2,) * 10, (2,) * 10, y_layout=reversed_memory),
        sample("dims17", (2,) * 17, (2,) * 17, y_layout=reversed_memory, large=True),
        Sample("other_scalars", lambda make: (make(9, 5), make(9, 5), -0.37, 1e-3)),
        Sample("equal_terms", lambda make: (x := make(37, 67), x.clone(), 1.1, -1.1)),  # exactly 0
        Sample("defaults", lambda make: (make(9, 5), make(9, 5))),
    )


def axpby_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    return [
        RawCall("axpby", (make(rows, n), make(rows, n), 3.0, -1.0)),
        RawCall("axpby", (make(rows, n), make(n), 3.0, -1.0), shared=(1,)),
        RawCall("axpby_backward", (make(rows, n), 3.0, -1.0), row_outputs=(0, 1)),
    ]
