"""Inputs of rope and qk_norm_rope, and their formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .case import RawCall, Sample
from .inputs import Layout, Make, misaligned, row_slice, stepped, transposed

Pair = tuple[Tensor, Tensor]
MOST_ROTATED = 2048  # numbers of a head that has kernels of rope; of more it is the plain composition
MOST_NORMALIZED = 256  # numbers of a head that has kernels of qk_norm_rope on CUDA; of more it is the plain composition
LONGEST_HEADS = {"rope": MOST_ROTATED, "qk_norm_rope": MOST_NORMALIZED}


def _rotated(
    x: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> Tensor | None:
    """Of heads ``[*batch, heads, seq, dim]``; ``rotary_dim`` is what tables are the width of, or twice that."""
    if x is None:
        return None
    if positions is not None:
        positions = torch.where(positions < 0, len(cos), positions)  # no row, where indexing counts from the end
        cos, sin = cos[positions], sin[positions]
    n = rotary_dim or cos.shape[-1]
    half = n // 2

    def pairs(t: Tensor) -> tuple[Tensor, Tensor]:
        return (t[..., 0:n:2], t[..., 1:n:2]) if interleaved else (t[..., :half], t[..., half:n])

    x = x.movedim(seq_dim, -2)
    if x.dim() > 2:
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    (a, b), (c, d), (s, t) = (
        pairs(x),
        *((table, table) if table.shape[-1] < n else pairs(table) for table in (cos, sin)),
    )
    first, second = a * c - b * s, b * d + a * t
    turned = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return torch.cat((turned, x[..., n:]), -1).movedim(-2, seq_dim)


def rope(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor | None, ...]:
    return _rotated(q, cos, sin, **options), _rotated(k, cos, sin, **options)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    **options: Any,
) -> tuple[Tensor | None, ...]:
    def normalized(x: Tensor | None, weight: Tensor | None) -> Any:
        if x is None:
            return None
        h = x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
        return h if weight is None else h * (weight + weight_offset)

    return rope(normalized(q, q_weight), normalized(k, k_weight), cos, sin, **options)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def torch_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Pair:
    """As models of Hugging Face have it, whose tables are of the heads' dtype."""
    cos, sin = cos.unsqueeze(-3).to(q.dtype), sin.unsqueeze(-3).to(q.dtype)
    return q * cos + _turned(q) * sin, k * cos + _turned(k) * sin


def torch_qk_norm_rope(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, eps: float
) -> Pair:
    q, k = (F.rms_norm(x, x.shape[-1:], w.to(x.dtype), eps) for x, w in ((q, q_weight), (k, k_weight)))
    return torch_rope(q, k, cos, sin)


def samples(weights: bool) -> Iterator[Sample]:
    """With a weight for q and for k where they are normalised."""

    def sample(
        name: str,
        heads: tuple[int | None, int | None],
        seq: int,
        dim: int,
        rotary: int | None = None,
        batch: tuple[int, ...] = (2,),
        table_batch: tuple[int, ...] = (),
        layout: Layout | None = None,
        by_token: bool = False,
        wide: bool = False,
        **flags: bool,
    ) -> Sample:
        rotary = rotary or dim

        def build(make: Make) -> tuple[Any, ...]:
            def tensor(count: int | None) -> Tensor:
                if count is None:  # no dimension of heads
                    return make(seq, dim, layout=layout)
                if by_token:  # [*batch, seq, heads, dim] in memory
                    return make(*batch, seq, count, dim, layout=layout).transpose(-2, -3)
                return make(*batch, count, seq, dim, layout=layout)

            dtype = make.parameter_dtype if wide else make.dtype
            affine = [make(dim, shift=1.0, scale=0.2, dtype=dtype) for _ in range(2)] if weights else []
            angles = make(*table_batch, seq, rotary, scale=3.0, dtype=torch.float64)
            tables = (angles.cos().to(dtype), angles.sin().to(dtype))
            return tensor(heads[0]), tensor(heads[1]), *affine, *tables, *((1e-3,) if weights else ())

        return Sample(name, build, unlike_torch=rotary != dim or None in heads, **flags)

    yield sample("small", (2, 1), 3, 4, batch=(1,), small=True)
    yield sample("small_partial", (1, 1), 2, 6, rotary=4, batch=(), small=True)
    yield sample("small_without_heads", (None, None), 3, 4, batch=(), small=True)
    for dim in (2, 8, 64, 80, 96, 128, 256):
        yield sample(f"dim{dim}", (6, 2), 7, dim)
        yield sample(f"dim{dim}_wide", (6, 2), 7, dim, wide=True)
    for dim, rotary in ((128, 96), (64, 34), (33, 20), (96, 50), (21, 12)):
        yield sample(f"dim{dim}_rotary{rotary}", (5, 1), 9, dim, rotary)
    # Longer than the kernel that normalises takes, or nearly.
    for dim, rotary in ((320, 200), (256, 252), (248, 244)) if weights else ():
        yield sample(f"dim{dim}_rotary{rotary}", (2, 1), 5, dim, rotary)
    yield sample("many_heads", (71, 1), 3, 64)
    yield sample("heads300", (300, 1), 1, 64)
    yield sample("one_head", (1, 1), 67, 64)
    yield sample("by_token", (8, 2), 37, 64, by_token=True)
    yield sample("one_token", (32, 8), 1, 128, by_token=True)
    yield sample("tables_of_batch", (4, 2), 11, 64, batch=(3,), table_batch=(3,))
    yield sample("tables_of_one", (4, 2), 11, 64, batch=(3,), table_batch=(1,))
    yield sample("two_batches", (4, 2), 5, 32, batch=(2, 3), table_batch=(3,))
    yield sample("no_batch", (4, 2), 5, 32, batch=())
    yield sample("no_tokens", (4, 2), 0, 32)
    yield sample("no_heads_of_q", (0, 2), 5, 32)
    yield sample("no_heads_of_k", (4, 0), 5, 32)
    yield sample("many_tokens", (2, 1), 4099, 32, batch=(1,), large=True)
    for layout in (transposed, stepped, row_slice, misaligned):
        yield sample(layout.__name__, (3, 2), 17, 64, layout=layout)


def raw(name: str) -> Callable[[Make, int, int], list[RawCall]]:
    """Tokens first; tables of both widths and dtypes, by halves and interleaved, with positions, the adjoint.

    With positions a few numbers of a head are not rotated. Of the last rows are sequences of two tokens.
    """

    def calls(make: Make, rows: int, n: int) -> list[RawCall]:
        n = min(n, LONGEST_HEADS[name])
        found: list[RawCall] = []
        for half, interleaved, looked_up, adjoint, batch in (
            (False, False, False, False, False),
            (True, True, False, True, False),
            (False, True, True, False, False),
            (True, False, True, True, False),
            (False, False, False, False, True),
        ):
            dtype = make.parameter_dtype if half else make.dtype
            rotary = (n - 4 if looked_up and 8 < n < MOST_NORMALIZED else n) // 2 * 2
            of_q, of_k = (2, 1) if n > MOST_NORMALIZED else (3, 2) if found else (7, 2)  # a kernel has fewer at once
            tokens = (2,) * batch
            tabled = 7 if looked_up else 2 if batch else rows
            q, k = make(rows, *tokens, of_q, n), make(rows, *tokens, of_k, n)
            tables = [make(tabled, rotary // 2 if half else rotary, dtype=dtype) for _ in range(2)]
            positions = make.integers(rows, below=7) if looked_up else None
            options = (positions, rotary, interleaved, -3)
            shared: tuple[int, ...] = (2, 3) if looked_up or batch else ()
            if name == "rope":
                found.append(RawCall("rope", (q, k, *tables, *options, adjoint), shared, row_outputs=(0, 1)))
                continue
            weights = [make(n, dtype=dtype) for _ in range(2)]
            shared = (2, 3, 4, 5) if looked_up or batch else (2, 3)
            args: tuple[Any, ...] = (q, k, *weights, *tables, *options, 1e-3, 0.5 if half else 0.0)
            found.append(RawCall(name, args, shared, row_outputs=(0, 1)))
            shared = tuple(k + 2 for k in shared)
            args = (make(*q.shape), make(*k.shape), *args, not adjoint)
            found.append(RawCall(f"{name}_backward", args, shared, row_outputs=(0, 1)))
        return found

    return calls


def problem(weights: bool) -> Callable[..., tuple[Any, ...]]:
    """``make, tokens, dim`` or ``make, tokens, heads of q, dim``; k has 8 heads, or as many as q if these are fewer."""

    def arguments(make: Make, tokens: int, heads: int, dim: int | None = None) -> tuple[Any, ...]:
        heads, dim = (4, heads) if dim is None else (heads, dim)
        batch = tokens if tokens <= 64 else 4 if tokens % 4 == 0 and tokens >= 16384 else 1
        seq = tokens // batch
        # As projections give them: the tokens one behind the other.
        q, k = (make(batch, seq, count, dim).transpose(1, 2) for count in (heads, min(heads, 8)))
        # Both numbers of a pair by one angle, which some peers take for granted.
        tables = (make(seq, dim // 2, dtype=make.parameter_dtype).repeat(1, 2) for _ in range(2))
        affine = (make(dim), make(dim)) if weights else ()
        return q, k, *affine, *tables, *((1e-6,) if weights else ())

    return arguments


def gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tables alone."""
    return args[2:4]
