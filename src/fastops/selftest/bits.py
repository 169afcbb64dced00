"""Tensors compared bit by bit: NaN with NaN, and 0 is not -0."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by their bytes


def bits(x: Tensor) -> Tensor:
    """Each number as an integer of its size, of which torch compares more at a time than of bytes."""
    return x.detach().contiguous().view(-1).view(_INTEGERS.get(x.element_size(), torch.uint8))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def other_bits(found: Iterable[Tensor], expected: Iterable[Tensor]) -> Tensor:
    """Whether any of them has other bits than expected, on their device: what asks for it waits."""
    return torch.stack([(bits(a) != bits(b)).any() for a, b in zip(found, expected, strict=True)]).any()


def all_alike(slices: Tensor) -> bool:
    """Whether all slices along the first dimension have the same bits."""
    dense = slices.contiguous()
    size = math.gcd(8, dense[0].nbytes, dense.storage_offset() * dense.element_size())
    numbers = dense.view(len(dense), -1).view(_INTEGERS[size])
    return torch.equal(numbers[1:], numbers[:-1])
