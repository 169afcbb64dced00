"""Tensors of a GPU brought to the CPU by one copy: to wait for a GPU that several processes use takes far longer."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

K = TypeVar("K", bound=Hashable)
Flag = tuple[K, str, Tensor]  # a key, a description, and a boolean without dimensions


def on_cpu(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """Their values; what is there is itself, without its graph."""
    found = [x.detach() for x in tensors]
    far = [k for k, x in enumerate(found) if not x.is_cpu]
    if len({found[k].device for k in far}) != 1:
        return tuple(x.cpu() for x in found)
    far.sort(key=lambda k: -found[k].element_size())  # so that each begins at a multiple of its elements' size
    pieces = [found[k].contiguous().view(-1).view(torch.uint8) for k in far]
    copied = torch.cat(pieces).cpu().split([len(piece) for piece in pieces])
    for k, piece in zip(far, copied, strict=True):
        found[k] = piece.view(found[k].dtype).view(found[k].shape)
    return tuple(found)


def first_set(flags: Iterable[Flag[K]]) -> dict[K, str]:
    """Of each key that has a flag which is true the first such one's description; a GPU is waited for once."""
    flags = list(flags)
    found: dict[K, str] = {}
    for (key, description, _), is_true in zip(flags, on_cpu(flag for _, _, flag in flags), strict=True):
        if is_true:
            found.setdefault(key, description)
    return found
