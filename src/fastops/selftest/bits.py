"""Tensors compared bit by bit: NaN with NaN, and 0 is not -0."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from .together import on_cpu

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def bits(x: Tensor) -> Tensor:
    """Each number as an integer of its size, of which torch compares more at a time than of bytes."""
    return x.detach().contiguous().view(-1).view(_INTEGERS.get(x.element_size(), torch.uint8))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return bool(_same(a, b))


def all_same(found: Iterable[Tensor], expected: Iterable[Tensor]) -> bool:
    """Whether each has the bits of its counterpart; a GPU is waited for once."""
    return all(on_cpu(_same(a, b) for a, b in zip(found, expected, strict=True)))


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Whether they have one shape, dtype and bits; a GPU is not waited for."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return torch.zeros((), dtype=torch.bool, device=a.device)
    return _equal(bits(a), bits(b))


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """On the CPU by torch's fastest comparison."""
    return torch.tensor(torch.equal(a, b)) if a.is_cpu else (a == b).all()


def other_bits(found: Iterable[Tensor], expected: Iterable[Tensor]) -> Tensor:
    """Whether any of them has other bits than expected, on their device: what asks for it waits."""
    return ~torch.stack([_same(a, b) for a, b in zip(found, expected, strict=True)]).all()


def all_alike(slices: Tensor) -> Tensor:
    """Whether all slices along the first dimension have the same bits, on their device: what asks for it waits."""
    dense = slices.contiguous()
    size = math.gcd(8, dense[0].nbytes, dense.storage_offset() * dense.element_size())
    numbers = dense.view(len(dense), -1).view(_INTEGERS[size])
    return _equal(numbers[1:], numbers[:-1])
