"""Inputs of the gated linear units, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import (
    LAYOUTS,
    SIZES,
    Layout,
    Make,
    block,
    channels_last,
    misaligned,
    reversed_memory,
    row_slice,
    stepped,
    transposed,
)
from .linear import gelu, gelu_tanh


def _halves(gate: Tensor, up: Tensor | None, dim: int = -1, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    if up is not None:
        return gate, up
    first, second = gate.unflatten(dim, (-1, 2)).unbind(dim % gate.dim() + 1) if interleaved else gate.chunk(2, dim)
    return first, second


def _product(
    act: Callable[[Tensor], Tensor],
    gate: Tensor,
    up: Tensor,
    limit: float | None = None,
    offset: float = 0.0,
    row_scale: Tensor | None = None,
) -> Tensor:
    if limit is not None:
        # Not clamp, whose derivative at the limit itself depends on torch's version.
        gate, up = torch.where(gate > limit, limit, gate), torch.where(up.abs() > limit, limit * up.sign(), up)
    y = act(gate) * (up + offset)
    return y if row_scale is None else y * row_scale.unsqueeze(-1)


def swiglu(
    gate: Tensor, up: Tensor | None = None, dim: int = -1, interleaved: bool = False, alpha: float = 1.0, **rest: Any
) -> Tensor:
    return _product(lambda g: g / (1 + torch.exp(-alpha * g)), *_halves(gate, up, dim, interleaved), **rest)


def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    dim: int = -1,
    interleaved: bool = False,
    approximate: str = "none",
    **rest: Any,
) -> Tensor:
    act = gelu if approximate == "none" else gelu_tanh
    return _product(act, *_halves(gate, up, dim, interleaved), **rest)


def reglu(gate: Tensor, up: Tensor | None = None, dim: int = -1, interleaved: bool = False, **rest: Any) -> Tensor:
    return _product(lambda g: torch.where(g <= 0, 0, g), *_halves(gate, up, dim, interleaved), **rest)


def glu(input: Tensor, dim: int = -1, gate: Tensor | None = None, interleaved: bool = False, **rest: Any) -> Tensor:
    u, g = _halves(input, gate, dim, interleaved)
    return _product(lambda g: 1 / (1 + torch.exp(-g)), g, u, **rest)


def torch_swiglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    g, u = _halves(gate, up)
    return F.silu(g) * u


def torch_geglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    g, u = _halves(gate, up)
    return F.gelu(g) * u


def torch_reglu(gate: Tensor, up: Tensor | None = None) -> Tensor:
    g, u = _halves(gate, up)
    return F.relu(g) * u


def samples() -> Iterator[Sample]:
    """Of two tensors, and of one that has both."""

    def two(name: str, *shape: int, layout: Layout | None = None, other: Layout | None = None, **flags: bool) -> Sample:
        return Sample(name, lambda make: (make(*shape, scale=2.0, layout=layout), make(*shape, layout=other)), **flags)

    for n in SIZES:
        yield two(f"n{n}", n)
    yield two("n131072", 131072, large=True)
    yield two("0d")
    yield two("small", 3, 4, small=True)
    yield two("rows", 37, 129)
    yield two("empty", 5, 0)
    for layout in LAYOUTS:
        yield two(layout.__name__, 37, 67, layout=layout, other=layout)
        yield two(f"{layout.__name__}_gate", 37, 67, layout=layout)
        yield two(f"{layout.__name__}_up", 37, 67, other=layout)
    yield two("channels_last", 2, 5, 3, 7, layout=channels_last, other=channels_last)
    yield two("large_block", 65, 67, 70, layout=block, other=block, large=True)
    yield two("dims12", *[1] * 10, 3, 8)  # whose strides have no place on the stack
    yield two("dims17", *[2] * 17, large=True)
    yield two("dims17_up", *[2] * 17, other=reversed_memory, large=True)
    yield two("large_misaligned", 33, 257, layout=misaligned)  # on CUDA: a vector at any alignment
    yield two("large_rows", 67, 131, layout=row_slice)
    yield from packed()


def packed() -> Iterator[Sample]:
    def one(name: str, *shape: int, layout: Layout | None = None, **flags: bool) -> Sample:
        return Sample(name, lambda make: (make(*shape, scale=2.0, layout=layout),), **flags)

    for n in (2, 6, 8, 16, 30, 34, 122, 256):
        yield one(f"both{n}", 5, n)
    yield one("both_small", 3, 4, small=True)
    yield one("both_vector", 66)
    yield one("both_empty", 0, 6)
    yield one("both_without_columns", 3, 0)
    yield one("both_rows", 67, 2 * 131)  # halves that begin at different alignments
    yield one("both_aligned_rows", 67, 2 * 128)
    yield one("both3d", 3, 5, 2 * 67)
    yield one("vectors3d", 3, 5, 2 * 32)
    for layout in LAYOUTS:
        yield one(f"both_{layout.__name__}", 37, 2 * 67, layout=layout)
    yield one("both_stepped3d", 5, 7, 18, layout=stepped)
    yield one("both_permuted", 3, 4, 5, 6, layout=lambda t: t.permute(2, 0, 3, 1))


def glu_samples() -> Iterator[Sample]:
    """Along other dimensions too."""
    yield from packed()

    def along(name: str, dim: int, *shape: int, layout: Layout | None = None, **flags: bool) -> Sample:
        return Sample(name, lambda make: (make(*shape, scale=2.0, layout=layout), dim), **flags)

    yield along("first", 0, 6, 5)
    yield along("small_first", 0, 4, 3, small=True)
    yield along("middle", 1, 3, 8, 7)
    yield along("channels", 1, 2, 6, 3, 7)
    yield along("channels_last", 1, 2, 6, 3, 7, layout=channels_last)
    yield along("transposed_first", 0, 66, 37, layout=transposed)


def raw(name: str, *options: Any) -> Callable[[Make, int, int], list[RawCall]]:
    """Two tensors, one in halves and by turns, with bounds and with a scale for each row."""

    def calls(make: Make, rows: int, n: int) -> list[RawCall]:
        scale = make(rows, dtype=make.parameter_dtype)
        both = make(rows, 2 * n, scale=2.0)
        gate, up = make(rows, n, scale=2.0), make(rows, n)
        found: list[RawCall] = []
        for first, second, rest in (
            (gate, up, (-1, False, None, 0.0, None)),
            (both, None, (-1, False, None, 0.0, None)),
            (both, None, (1, True, 1.5, 1.0, None)),
            (gate, up, (-1, False, 0.5, 0.5, scale)),
            (both, None, (-1, False, None, 1.0, scale)),
        ):
            found.append(RawCall(name, (first, second, *rest, *options)))
            for needs_scale in {False, rest[-1] is not None}:
                outputs = (0, *((1,) if second is not None else ()), *((2,) if needs_scale else ()))
                args = (make(rows, n), first, second, *rest, *options, needs_scale)
                coarse = (2,) if needs_scale and scale.dtype != make.dtype else ()  # of the short forms' digits
                found.append(RawCall(f"{name}_backward", args, row_outputs=outputs, coarse=coarse))
        return found

    return calls


def geglu_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    """Tanh's approximation of two tensors alone."""
    forward, backward = raw("geglu", "tanh")(make, rows, n)[:2]
    return [*raw("geglu", "none")(make, rows, n), forward, backward]


def two_tensors(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return make(rows, n), make(rows, n)


def one_tensor(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return (make(rows, 2 * n),)
