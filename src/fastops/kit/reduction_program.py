"""A reduction in every form: kernels for CPU and CUDA, the plain composition, the shape of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._promotion import promoted
from . import expression, source
from .expression import Node
from .program import Program, unique

# Reductions that torch has, by which the plain composition takes them; and what an empty one is.
_KNOWN = {"a + b": 0.0, "a * b": 1.0, "max(a, b)": None, "min(a, b)": None}
_KINDS = {expression.parse(text, ("a", "b"))[0]: (text, identity) for text, identity in _KNOWN.items()}


def known(reduce: Node) -> tuple[str, float | None]:
    """How torch's own reduction is written, "" for none, and what an empty one is."""
    return _KINDS.get(reduce, ("", None))


class Reduction(Program):
    """``post(reduce(map, ...))`` over some dimensions, as an op of (tensors, scalars, dim, keepdim, wide).

    ``wide``: the result of half types is float32. No dim stands for all.
    """

    def __init__(self, name: str, parts: Sequence[source.Function], identity: float | None, content: str) -> None:
        self.parts, self.identity = tuple(parts), identity
        mapped, reduced, post = parts
        self._map = expression.torch_function(mapped.nodes, (*mapped.tensors, *mapped.scalars))
        self._reduce = expression.torch_function(reduced.nodes, ("a", "b"))
        self._post = expression.torch_function(post.nodes, (*post.tensors, *post.scalars))
        self.kind = known(reduced.nodes[0])[0]
        self.is_sum = self.kind == "a + b" and identity == 0 and post.nodes == expression.parse("a", ("a",))
        more = "int[] dim, bool keepdim, bool wide"
        super().__init__(name, mapped.tensors, mapped.scalars, 1, content, more)

    def reference(self, *inputs: Any) -> Tensor:
        count = len(self.tensors)
        tensors, scalars, (dim, keepdim, wide) = inputs[:count], inputs[count:-3], inputs[-3:]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dims = normalised(self.name, dim, len(shape))
        (values,) = self._map(*tensors, *scalars)
        values = values.expand(shape)
        n = length(shape, dims)
        self.check_empty(shape, dims)
        total = expression.cast(self._total(values, dims, n), values.dtype)
        (out,) = self._post(total, torch.full((), n, dtype=values.dtype, device=values.device), *scalars)
        out = out.expand(total.shape).reshape(_reduced(shape, dims, keepdim))
        out = expression.cast(out, _result_dtype(tensors, wide))
        return out if out.is_contiguous() else out.contiguous()

    def check_empty(self, shape: Sequence[int], dims: tuple[int, ...]) -> None:
        if self.identity is None and length(shape, dims) == 0:
            raise RuntimeError(f"[{self.name}] an empty reduction needs identity=, got shape {list(shape)}")

    def _total(self, values: Tensor, dims: tuple[int, ...], n: int) -> Tensor:
        """With the reduced dimensions as 1."""
        if n == 1:
            return values.clone()  # not one of the inputs
        if n == 0:
            assert self.identity is not None
            return values.new_full(_reduced(values.shape, dims, True), self.identity)
        if self.kind == "a + b":
            return values.sum(dims, keepdim=True)
        if self.kind == "max(a, b)":
            return values.amax(dims, keepdim=True)
        if self.kind == "min(a, b)":
            return values.amin(dims, keepdim=True)
        flat = values.movedim(dims, tuple(range(-len(dims), 0))).flatten(-len(dims))
        total = flat.prod(-1) if self.kind == "a * b" else self._halved(flat)
        return total.reshape(_reduced(values.shape, dims, True))

    def _halved(self, flat: Tensor) -> Tensor:
        # The odd ones. To join them to the others by torch.cat crashes Inductor's backward in torch 2.13.
        tail: Tensor | None = None
        while flat.shape[-1] > 1:
            half = flat.shape[-1] // 2
            if flat.shape[-1] % 2:
                odd = flat[..., -1:]
                tail = odd if tail is None else self._reduce(tail, odd)[0]
            (flat,) = self._reduce(flat[..., :half], flat[..., half : 2 * half])
        if tail is not None:
            (flat,) = self._reduce(flat, tail)
        return flat[..., 0]

    def fake(self, *inputs: Any) -> Tensor:
        tensors, (dim, keepdim, wide) = inputs[: len(self.tensors)], inputs[-3:]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dims = normalised(self.name, dim, len(shape))
        return tensors[0].new_empty(_reduced(shape, dims, keepdim), dtype=_result_dtype(tensors, wide))

    def cpp(self, dtypes: Sequence[int]) -> str:
        return source.cpp(["rows.h", "sums.h", "reduction.h"], self.parts, dtypes)

    def cuda(self, dtypes: Sequence[int], variant: int) -> str:
        return source.cuda(["rows.h", "reduction.cuh"], self.parts, dtypes, variant)


def _result_dtype(tensors: Sequence[Tensor], wide: bool) -> torch.dtype:
    dtype = promoted(tensors)
    return torch.promote_types(dtype, torch.float32) if wide else dtype


def normalised(op: str, dim: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Ascending, from 0; all of them for none."""
    if not dim:
        return tuple(range(ndim))
    bound = max(ndim, 1)
    for d in dim:
        if not -bound <= d < bound:
            raise IndexError(f"[{op}] dim must be in [{-bound}, {bound - 1}], got {d}")
    dims = sorted(d % bound for d in dim)
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"[{op}] dim names a dimension twice, got {list(dim)}")
    return tuple(dims) if ndim else ()


def _reduced(shape: Sequence[int], dims: tuple[int, ...], keepdim: bool) -> list[int]:
    return [1 if d in dims else size for d, size in enumerate(shape) if keepdim or d not in dims]


def length(shape: Sequence[int], dims: Sequence[int]) -> int:
    """How many elements a row has."""
    n = 1
    for d in dims:
        n = n * shape[d]
    return n


def reduction_program(
    name: str,
    signature: expression.Signature,
    nodes: tuple[Node, Node, Node],
    identity: float | None,
) -> Reduction:
    """The program of map, reduce and post; one of the same name and content is made once."""
    scalars = tuple(signature.scalars)
    parts = (
        source.Function("compute_map", signature.tensors, scalars, nodes[:1]),
        source.Function("compute_reduce", ("a", "b"), (), nodes[1:2]),
        source.Function("compute_post", ("a", "n"), scalars, nodes[2:]),
    )
    content = "\n".join([name, *(f.text("double") for f in parts), f"identity {identity!r}"])
    return unique(content, lambda: Reduction(name, parts, identity, content))
