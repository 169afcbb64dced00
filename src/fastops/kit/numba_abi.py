"""How a kernel of Numba's takes its arguments: types to compile for, and bytes to launch with."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import KitError
from .signature import offsets

DTYPES = {
    getattr(torch, name): name
    for name in (
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    )
} | {torch.bool: "boolean"}
_NUMBERS = {int: ("int64", "q"), float: ("float64", "d"), bool: ("boolean", "?")}
NUMBERS = tuple(number.__name__ for number in _NUMBERS)

# An array is this struct, passed member by member: shape and strides, in bytes, are one of each for every dimension.
_ARRAY = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")
_ARRAY_CODES = ["P", "P", "q", "q", "P"]


class Kind(NamedTuple):
    """What a kernel is compiled for: an array's dtype, dimensions and layout, C or any (A); or a number's type."""

    dtype: torch.dtype | type
    dimensions: int = 0
    layout: str = ""


def kind(x: Any) -> Kind:
    return Kind(x.dtype, x.dim(), "C" if x.is_contiguous() else "A") if isinstance(x, Tensor) else Kind(type(x))


def numba_type(cuda: Any, kind: Kind, readonly: bool) -> Any:
    if isinstance(kind.dtype, torch.dtype):
        element = getattr(cuda.types, DTYPES[kind.dtype])
        return cuda.types.Array(element, kind.dimensions, kind.layout, readonly=readonly)
    return getattr(cuda.types, _NUMBERS[kind.dtype][0])


def check_arrays(name: str, cuda: Any) -> None:
    """Numba does not promise the layout: another one must be an error, and no wild pointer."""
    from numba.cuda.descriptor import cuda_target  # type: ignore[import-not-found,import-untyped,unused-ignore]

    model = cuda_target.target_context.data_model_manager[cuda.types.Array(cuda.types.float32, 1, "C")]
    if tuple(getattr(model, "_fields", ())) != _ARRAY:
        raise KitError(f"[{name}] this version of numba-cuda passes arrays in a way that the kit does not know")


class Packing:
    """Arguments of certain kinds as bytes."""

    def __init__(self, kinds: Sequence[Kind]) -> None:
        codes = [code for kind in kinds for code in _codes(kind)]
        self.offsets = offsets(codes)
        self._struct = struct.Struct("@" + "".join(codes))

    def __call__(self, arguments: Sequence[Any]) -> bytes:
        return self._struct.pack(*(value for x in arguments for value in _values(x)))


def _codes(kind: Kind) -> list[str]:
    if isinstance(kind.dtype, torch.dtype):
        return [*_ARRAY_CODES, *["q"] * (2 * kind.dimensions)]
    return [_NUMBERS[kind.dtype][1]]


def _values(x: Any) -> tuple[Any, ...]:
    if not isinstance(x, Tensor):
        return (x,)
    size = x.element_size()
    return 0, 0, x.numel(), size, x.data_ptr(), *x.shape, *(size * stride for stride in x.stride())
