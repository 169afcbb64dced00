"""Forms of problems of rope and qk_norm_rope, their inputs, and both ops as a formula that is written by pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from fastops.cases import DTYPES, Make, by_name
from fastops.cases.inputs import HALVES
from fastops.selftest.accuracy import Evaluation, evaluate, incoming_gradients, ulps, wide_copies
from fastops.selftest.bits import same_bits

EPS = 1e-3


@dataclass(frozen=True)
class Form:
    """Shapes and options of a problem. ``positions`` is the batch that they have, before the tokens."""

    name: str
    batch: tuple[int, ...] = (2,)
    heads: int | None = 3  # None: of two dimensions
    k_heads: int | None = 2  # None: no k
    seq: int = 5
    dim: int = 16
    rotary: int | None = None  # None: all
    half: bool = False  # tables of half the width
    said: bool = True  # whether rotary_dim is given
    wide: bool = False  # f32 tables and weights beside halves
    interleaved: bool = False
    seq_dim: int = -2
    table_batch: tuple[int, ...] = ()
    positions: tuple[int, ...] | None = None
    position_dtype: torch.dtype = torch.int64
    weight_offset: float = 0.0

    @property
    def width(self) -> int:
        return self.rotary or self.dim

    @property
    def options(self) -> dict[str, Any]:
        given = {"rotary_dim": self.width} if self.said else {}
        return {**given, "interleaved": self.interleaved, "seq_dim": self.seq_dim}

    def shape(self, heads: int | None) -> tuple[int, ...]:
        others = [*self.batch] if heads is None else [*self.batch, heads]
        others.insert(self.seq_dim % (len(others) + 2), self.seq)
        return (*others, self.dim)


@dataclass(frozen=True)
class Op:
    """Of q, k, the weights where it has them, cos, sin and positions; a result that is None is left out."""

    name: str
    norm: bool

    @property
    def bounds(self) -> Any:
        return by_name()[self.name].bounds

    def options(self, form: Form) -> dict[str, Any]:
        return {**form.options, "eps": EPS, "weight_offset": form.weight_offset} if self.norm else form.options

    def arguments(self, form: Form, make: Make) -> tuple[Any, ...]:
        table = make.parameter_dtype if form.wide else make.dtype
        q = make(*form.shape(form.heads))
        k = None
        if form.k_heads is not None:
            k = make(*form.shape(None if form.heads is None else form.k_heads))
        weights: list[Any] = []
        if self.norm:
            shift = 1.0 - form.weight_offset
            weights = [make(form.dim, shift=shift, scale=0.2, dtype=table), None]
            if k is not None:
                weights[1] = make(form.dim, shift=shift, scale=0.2, dtype=table)
        rows, positions = form.seq, None
        if form.positions is not None:
            rows = 7
            positions = make.integers(*form.positions, form.seq, below=rows).to(form.position_dtype)
        width = form.width // 2 if form.half else form.width
        tables = [make(*form.table_batch, rows, width, dtype=table) for _ in range(2)]
        return (q, k, *weights, *tables, positions)

    def ours(self, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
        def call(*args: Any) -> tuple[Tensor, ...]:
            *tensors, positions = args
            found = getattr(fastops, self.name)(*tensors, positions=positions, **options)
            return tuple(y for y in found if y is not None)

        return call

    def plain(self, **options: Any) -> Callable[..., tuple[Tensor, ...]]:
        """The formula; ``eps`` and ``weight_offset`` are the norm's."""
        eps, offset = options.pop("eps", None), options.pop("weight_offset", 0.0)

        def call(*args: Any) -> tuple[Tensor, ...]:
            q, k, *weights, cos, sin, positions = args
            found = []
            for x, weight in zip((q, k), weights or (None, None), strict=True):
                if x is not None:
                    h = normalized(x, weight, eps, offset) if self.norm else x
                    found.append(rotated(h, cos, sin, positions, **options))
            return tuple(found)

        return call


OPS = (Op("rope", False), Op("qk_norm_rope", True))
every_op = pytest.mark.parametrize("op", OPS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def normalized(x: Tensor, weight: Tensor | None, eps: float | None, offset: float = 0.0) -> Tensor:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    h = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return h if weight is None else h * (weight + offset)


def rotated(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> Tensor:
    """Numbers picked by their places in a head: of the first and of the second of each pair."""
    rotary = rotary_dim or (cos.shape[-1] if 2 * cos.shape[-1] > x.shape[-1] else 2 * cos.shape[-1])
    pair = torch.arange(rotary // 2, device=x.device)
    first, second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + rotary // 2)
    if positions is not None:
        cos, sin = cos[positions.long()], sin[positions.long()]
    if cos.shape[-1] == rotary:
        (c1, c2), (s1, s2) = ((t[..., first], t[..., second]) for t in (cos, sin))
    else:
        c1 = c2 = cos
        s1 = s2 = sin
    seq = seq_dim % x.dim()
    moved = x.unsqueeze(-2) if x.dim() == 2 else x.movedim(seq, -3)  # [*batch, seq, heads, dim]
    c1, c2, s1, s2 = (t.unsqueeze(-2) for t in (c1, c2, s1, s2))
    a, b = moved[..., first], moved[..., second]
    rest = torch.arange(rotary, x.shape[-1], device=x.device)
    places = torch.cat((first, second, rest)).argsort()
    y = torch.cat((a * c1 - b * s1, b * c2 + a * s2, moved[..., rest]), -1)[..., places]
    return y.squeeze(-2) if x.dim() == 2 else y.movedim(-3, seq)


def check(op: Op, options: dict[str, Any], args: tuple[Any, ...]) -> Evaluation:
    """Values and gradients against float64, by the bounds of the operator's row; inputs are left as they were."""
    before = [x.clone() if isinstance(x, Tensor) else x for x in args]
    found = evaluate(op.ours(**options), args)
    for x, y in zip(args, before, strict=True):
        assert x is y is None or same_bits(x, y), "an input was modified"
    if op.norm and options.get("eps") is None:
        computed = torch.float64 if args[0].dtype == torch.float64 else torch.float32
        options = {**options, "eps": torch.finfo(computed).eps}
    truth = evaluate(op.plain(**options), wide_copies(args), wide_copies(incoming_gradients(found.outputs)))
    bound, half = op.bounds[args[0].dtype], args[0].dtype in HALVES
    for x, y, expected in zip((args[0], args[1]), found.outputs, truth.outputs, strict=False):
        assert y.dtype == x.dtype
        assert ulps(y, expected) <= (bound.forward if half else 2 * bound.forward)
    learnable = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    for at, (x, gradient, wanted) in enumerate(zip(learnable, found.gradients, truth.gradients, strict=True)):
        assert gradient.dtype == x.dtype
        coarsest = max((args[0].dtype, x.dtype), key=lambda dtype: torch.finfo(dtype).eps)
        assert ulps(gradient, wanted, dtype=coarsest) <= 2 * bound.gradient, at
    return found


def all_bits(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(same_bits(x, y) for x, y in zip(a, b, strict=True))
