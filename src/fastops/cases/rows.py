"""Inputs of the row operators, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .case import RawCall, Sample
from .inputs import LAYOUTS, LONG_SLICES, SIZES, Layout, Make, channels_last, row_slice, shortened, stepped, transposed

# Lengths of rows. At every level the last number is in the first half of a half type's unit of two vectors, and in the
# second.
ENDS_IN_BOTH_HALVES = (67, 93)


def softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    e = torch.exp(_below_largest(input, dim, dtype, scale))
    return e / e.sum(dim, keepdim=True)


def log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
    z = _below_largest(input, dim, dtype, scale)
    return z - torch.log(torch.exp(z).sum(dim, keepdim=True))


def torch_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.softmax(input, dim, dtype)


def torch_log_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.log_softmax(input, dim, dtype)


def _below_largest(input: Tensor, dim: int, dtype: torch.dtype | None, scale: float) -> Tensor:
    z = (input if dtype is None else input.to(dtype)) * scale
    # What is taken out has no derivative: autograd would send the largest the rounding of all others'.
    return z - z.amax(dim, keepdim=True).detach() if z.numel() else z


def samples() -> Iterator[Sample]:
    def sample(
        name: str,
        *shape: int,
        dim: int = -1,
        scale: float = 2.0,
        shift: float = 0.0,
        layout: Layout | None = None,
        wide: bool = False,
        change: Callable[[Tensor], Tensor] = lambda x: x,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            x = make(*shape, scale=scale, shift=shift, layout=lambda t: layout(change(t)) if layout else change(t))
            return (x, dim, make.parameter_dtype) if wide else (x, dim)

        return Sample(name, build, **flags)

    for n in SIZES:
        yield sample(f"n{n}", 5, n)
    for n in (2, 192, 769, 1000, 1024, 4096, 5504):
        yield sample(f"n{n}", 3, n)
    yield sample("n50257", 3, 50257, large=True)
    yield sample("n131072", 2, 131072, large=True)
    yield sample("small", 4, 5, small=True)
    yield sample("small_first", 3, 4, dim=0, small=True)
    yield sample("small_middle", 2, 3, 2, dim=1, small=True)
    yield sample("small_vector", 4, dim=0, small=True)
    yield sample("0d", dim=0, small=True)
    yield sample("vector", 33)
    yield sample("one_row", 1, 127)
    yield sample("no_rows", 0, 16)
    yield sample("no_rows_inside", 3, 0, 2, dim=0)
    yield sample("no_columns", 3, 0)
    yield sample("first", 37, 129, dim=0)
    yield sample("first_of_one", 1, 7, dim=0)
    yield sample("middle_of_one", 5, 1, 3, dim=1)
    yield sample("first_of_short_rows", 257, 3, dim=-2)
    yield sample("middle", 5, 33, 17, dim=1)
    yield sample("middle4d", 2, 3, 67, 5, dim=-2)
    yield sample("heads", 2, 3, 17, 64)
    yield sample("rows4099", 4099, 61, large=True)
    yield sample("columns4099", 61, 4099, dim=0, large=True)
    yield sample("close", 7, 257, scale=1e-4)
    yield sample("equal", 7, 257, scale=0.0, shift=3.0)
    yield sample("far", 7, 257, scale=10.0)
    yield sample("far_below", 7, 257, shift=-1e4)
    yield sample("far_below_for_threads_together", 1, 70001, shift=-1e3)
    yield sample("values_near_6e4", 7, 257, scale=4.0, shift=6e4)
    yield sample("far_below_all_others", 7, 257, change=_lowest)
    yield sample("minus_infinity", 7, 257, change=_masked)
    yield sample("minus_infinity_first", 257, 7, dim=0, change=_masked)
    yield sample("minus_infinity_but_for_a_piece", 3, 5504, change=pieces)
    for n in ENDS_IN_BOTH_HALVES:
        yield sample(f"minus_infinity_but_for_one_of_{n}", n, n, change=_but_for_one)
        yield sample(f"one_of_{n}_far_above", n, n, change=one_far_above)
    yield sample("nothing_but_minus_infinity", 5, 67, change=_without_numbers)
    yield sample("slices_of_longer", 37, 129, 61, layout=shortened)
    yield sample(LONG_SLICES, 2, 2, 16411, layout=shortened)
    yield sample("float32", 37, 129, wide=True)
    yield sample("float32_far_below", 37, 163, wide=True, change=_far_below)
    yield sample("float32_first", 129, 37, dim=0, wide=True)
    yield sample("float32_small", 4, 3, wide=True, small=True)
    yield sample("float32_sliced", 37, 67, wide=True, layout=row_slice)
    for layout in LAYOUTS:
        yield sample(layout.__name__, 37, 67, layout=layout)
        yield sample(f"{layout.__name__}_first", 37, 67, dim=0, layout=layout)
    yield sample("transposed3d", 3, 17, 129, layout=transposed)  # [B, V, S] with its logits in the middle
    yield sample("vectors3d", 3, 5, 64)
    yield sample("stepped3d", 5, 7, 9, dim=1, layout=stepped)
    yield sample("channels_last", 2, 5, 3, 7, dim=1, layout=channels_last)
    yield sample("permuted4d", 3, 4, 5, 6, layout=lambda t: t.permute(2, 0, 3, 1))


def _lowest(x: Tensor) -> Tensor:
    """Of the first row nothing but numbers near the lowest, as masks make; of the second all but one."""
    x[:2] = torch.finfo(x.dtype).min / 2
    x[1, 3] = 1.0
    return x


def _masked(x: Tensor) -> Tensor:
    """Every third element is -inf, which no row or column is left without a number by."""
    x.view(-1)[::3] = -torch.inf
    return x


def pieces(x: Tensor) -> Tensor:
    """Of long rows the numbers are in the first part, the last one, or between."""
    kept = torch.zeros_like(x, dtype=torch.bool)
    for row, (begin, end) in zip(kept, _PIECES, strict=True):
        row[begin:end] = True
    return x.masked_fill_(~kept, -torch.inf)


_PIECES = (0, 100), (-7, None), (4090, 4100)


def _but_for_one(x: Tensor) -> Tensor:
    """In each row it is another one."""
    return x.masked_fill_(_in_turn(x) == 0, -torch.inf)


def one_far_above(x: Tensor) -> Tensor:
    """e to its power is not finite in float32."""
    return x.add_(_in_turn(x), alpha=120.0)


def _far_below(x: Tensor) -> Tensor:
    """Half of each row is 0, so that gradients do not cancel. The others are whole numbers down to -80.

    A power's relative error grows with its exponent. Of whole numbers no difference from the largest is rounded.
    """
    whole = torch.arange(x.shape[-1], device=x.device)
    return x.copy_(torch.where(whole % 2 == 0, 0, -(whole // 2)))


def _in_turn(x: Tensor) -> Tensor:
    """1 at another place in each row, else 0."""
    at = torch.arange(x.shape[0], device=x.device) % x.shape[1]
    return torch.zeros_like(x).scatter_(1, at.unsqueeze(1), 1)


def _without_numbers(x: Tensor) -> Tensor:
    """NaN in one row, as the formula has it."""
    x[1] = -torch.inf
    return x


def raw(name: str) -> Callable[[Make, int, int], list[RawCall]]:
    """Along the last dimension and, of a tensor with one more, along the middle; scaled; the halves to float32."""

    def calls(make: Make, rows: int, n: int) -> list[RawCall]:
        own, wide = make.dtype, make.parameter_dtype
        return [
            *_pair(name, make, (rows, n), own),
            *_pair(name, make, (rows, n), own, -1, 0.125),
            *_pair(name, make, (rows, n), own, 1, -1.5),
            *_pair(name, make, (rows, n, 3), own, 1),
            *_pair(name, make, (rows, n), wide, -1, 1.0, wide),
            *_pair(name, make, (rows, n, 2), wide, -2, 2.0, wide),
        ]

    return calls


def _pair(name: str, make: Make, shape: tuple[int, ...], result: torch.dtype, *options: Any) -> list[RawCall]:
    """A forward, and the backward of the output that it has in plain PyTorch."""
    coarse = () if result == make.dtype else (0,)
    forward = RawCall(name, (make(*shape), *options), coarse=coarse)
    dtype = (make.dtype,) if len(options) == 3 else ()
    args = (make(*shape, dtype=result), forward.reference()[0], *options[:2], *dtype)
    return [forward, RawCall(f"{name}_backward", args)]


def problem(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return make(rows, n, scale=2.0), -1


def gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The output alone."""
    return outputs
