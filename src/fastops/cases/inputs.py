"""Random tensors of every dtype and layout, the same numbers everywhere."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HALVES = (torch.float16, torch.bfloat16)

Layout = Callable[[Tensor], Tensor]


class Make:
    """Normally distributed tensors of one device and dtype, the same numbers on every device and in every layout.

    Large ones are parts of one pool, from places that the seed draws: most of the time would be the generator's.
    A GPU is not waited for: what is pageable is staged before a copy returns.
    """

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        *shape: int,
        scale: float = 1.0,
        shift: float = 0.0,
        dtype: torch.dtype | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        return laid_out(self._random(shape, scale, shift, dtype or self.dtype), layout)

    def _random(self, shape: tuple[int, ...], scale: float, shift: float, dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        if _LARGE <= count <= _POOL // 2:
            begin = int(torch.randint(_POOL - count, (), generator=self._generator))
            values = _pool(self.device)[begin : begin + count].view(shape)
        else:
            values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return (values * scale + shift).to(dtype).to(self.device, non_blocking=True)

    def integers(self, *shape: int, below: int) -> Tensor:
        """From 0 on, int64."""
        return torch.randint(below, shape, generator=self._generator).to(self.device, non_blocking=True)

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The other dtype that affine parameters may have: float32 beside the half types."""
        return torch.float32 if self.dtype in HALVES else self.dtype


_LARGE, _POOL = 1 << 14, 1 << 21  # numbers


@functools.cache
def _pool(device: torch.device) -> Tensor:
    return torch.randn(_POOL, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)


def transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


def stepped(t: Tensor) -> Tensor:
    """Every second element of a larger tensor, along each dimension."""
    view = t.new_zeros([2 * n + 1 for n in t.shape])[tuple(slice(1, None, 2) for _ in t.shape)]
    return view.copy_(t)


def of_wider(t: Tensor, more: int) -> Tensor:
    """The first columns of rows that are so many columns wider."""
    view = t.new_zeros(*t.shape[:-1], t.shape[-1] + more)[..., : t.shape[-1]]
    return view.copy_(t)


def row_slice(t: Tensor) -> Tensor:
    """The first columns of wider rows."""
    return of_wider(t, 64)


def odd_rows(t: Tensor) -> Tensor:
    """One number lies between rows: of whole vectors few begin at an aligned address."""
    return of_wider(t, 1)


def shortened(t: Tensor) -> Tensor:
    """The first rows of more, in each slice of the dimension before: rows of two strides."""
    view = t.new_zeros(*t.shape[:-2], t.shape[-2] + 3, t.shape[-1])[..., : t.shape[-2], :]
    return view.copy_(t)


def block(t: Tensor) -> Tensor:
    """The first rows of more, and of them the first columns: no two of three dimensions are one."""
    view = t.new_zeros(*t.shape[:-2], t.shape[-2] + 3, t.shape[-1] + 64)[..., : t.shape[-2], : t.shape[-1]]
    return view.copy_(t)


def misaligned(t: Tensor) -> Tensor:
    """Contiguous, one element behind an aligned address."""
    return t.new_zeros(t.numel() + 1)[1:].view(t.shape).copy_(t)


def windows(t: Tensor) -> Tensor:
    """Each row begins at the second number of the one before."""
    dense = t.contiguous()
    return dense.as_strided(t.shape, (*dense.stride()[:-2], 1, 1))


def reversed_memory(t: Tensor) -> Tensor:
    """The first dimension is the innermost in memory, and the last the outermost."""
    dims = tuple(reversed(range(t.dim())))
    return t.permute(dims).contiguous().permute(dims)


def expanded(t: Tensor) -> Tensor:
    """The first row for all rows, at stride 0."""
    return t[:1].expand(t.shape)


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def laid_out(t: Tensor, layout: Layout | None) -> Tensor:
    return layout(t) if layout else t


LAYOUTS: tuple[Layout, ...] = (transposed, stepped, row_slice, misaligned, expanded)


LONG_SLICES = "long_slices"  # the sample of few rows that threads share, at two strides

# Around the vector widths of every ISA level and dtype, then odd primes.
SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 127, 257)
