"""The dtype of an elementwise result, as torch promotes. torch.compile does not trace torch's own function for it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


def promoted(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype that torch promotes all the tensors to, or the default dtype if that is an integer's."""
    dtype = product_dtype(tensors)
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def product_dtype(tensors: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype that torch promotes all the tensors to; integers stay integers."""
    with_dims = [t.dtype for t in tensors if t.dim()]
    without = [t.dtype for t in tensors if not t.dim()]
    dtype = functools.reduce(torch.promote_types, with_dims or without)
    if with_dims and without:
        scalar = functools.reduce(torch.promote_types, without)
        if _category(scalar) > _category(dtype):
            one, none = torch.empty(1, dtype=dtype, device="meta"), torch.empty((), dtype=scalar, device="meta")
            dtype = torch.result_type(one, none)
    return dtype


def _category(dtype: torch.dtype) -> int:
    """In which a tensor without dimensions does not widen one that has some."""
    return 3 if dtype.is_complex else 2 if dtype.is_floating_point else int(dtype != torch.bool)
