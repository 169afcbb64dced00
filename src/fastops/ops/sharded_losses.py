"""Losses of DTensors: each process computes those of its rows, or of its classes with the others of a group.

The mesh dimensions along which logits, or a linear layer's weight, have classes are the group of
:mod:`.vocabulary_parallel`: one all-gather of four numbers a row, none in the backward. Rows split along the others. A
sum over rows stays partial, and a mean divides it by what all of them weigh, which is one number to add up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from .._autocast import casts_losses
from ..families.likelihood import weights_of
from ..families.row import HALVES
from ..families.shard import shard_of
from ..sharding import added_up
from ..sharding.moves import from_local, redistributed, to_local
from .cross_entropy import class_dim, cross_entropy
from .linear_cross_entropy import _derivative, _kernel, linear_cross_entropy, raw_arguments
from .linear_log_prob import linear_log_prob
from .vocabulary_parallel import LinearCrossEntropyOfShard

Placements = list[Placement]


def _is_shard(placement: Placement, dim: int | None = None) -> bool:
    """In whole pieces one behind the other, along ``dim``."""
    return type(placement) is Shard and dim in (None, placement.dim)


def _is_row(placement: Placement, rows: Sequence[int]) -> bool:
    return getattr(placement, "dim", None) in rows


def _serves(mesh: Any, d: int, classes: int) -> bool:
    """Whether a group has the classes in the order of its ranks, and each of it some."""
    count = mesh.size(d)
    return _in_order(mesh, d) and classes > (count - 1) * -(-classes // count)


@functools.lru_cache(maxsize=64)  # a fifth of a forward on the host
def _in_order(mesh: Any, d: int) -> bool:
    return bool((mesh.mesh.diff(dim=d) > 0).all())


def _placements(x: Any) -> Placements:
    return list(x.placements)


def _local(x: Any, placements: Placements, of_gradient: Placements) -> Tensor:
    """Of ``x``, so placed; its gradient comes placed ``of_gradient``, and stays so where x did."""
    return to_local(redistributed(x, placements), of_gradient)


class _Rows(NamedTuple):
    """How the mesh splits rows: the placements of a tensor that has a number of each."""

    op: str
    mesh: Any
    placements: Placements

    @property
    def split(self) -> bool:
        return not all(p.is_replicate() for p in self.placements)

    @property
    def sums(self) -> Placements:
        return [Replicate() if p.is_replicate() else Partial() for p in self.placements]

    def local(self, name: str, x: Tensor) -> Tensor:
        """Of targets those of this process."""
        if isinstance(x, DTensor):
            return redistributed(x, self.placements).to_local()  # type: ignore[attr-defined,no-any-return]
        if self.split:
            raise RuntimeError(
                f"[{self.op}] got mixed torch.Tensor and DTensor: {name} must be a DTensor where rows are split"
            )
        return x

    def whole(self, x: Tensor | None) -> Tensor | None:
        """Of classes' weights all."""
        if isinstance(x, DTensor):
            return redistributed(x, [Replicate()] * self.mesh.ndim).to_local()  # type: ignore[attr-defined,no-any-return]
        return x

    def each(self, x: Tensor, shape: torch.Size) -> Tensor:
        """A result of rows."""
        return from_local(x, self.mesh, self.placements, shape, self.placements)

    def sum(self, x: Tensor) -> Any:
        return from_local(x, self.mesh, self.sums, x.shape, [Replicate()] * self.mesh.ndim)

    def reduced(
        self,
        reduction: str,
        loss: Callable[[str, torch.dtype | None], Any],
        y: Tensor,
        weight: Tensor | None,
        ignore_index: int,
        classes: int,
        dtype: torch.dtype,
        shape: torch.Size,
    ) -> Any:
        """``loss(reduction, dtype)`` of this process, as all processes' together."""
        if reduction == "none":
            return self.each(loss("none", dtype), shape)
        if reduction != "mean" or not self.split:
            return self.sum(loss(reduction, dtype))
        wide = torch.promote_types(dtype, torch.float32)
        kept = (y != ignore_index) & (y >= 0) & (y < classes)
        like = y.new_empty(0, dtype=wide)
        total = weights_of(weight, kept, torch.where(kept, y.long(), 0), like, classes)[1].sum()
        return self.sum((loss("sum", wide) / self.sum(total).full_tensor()).to(dtype))


def _loss_dtype(input: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is not None:
        return dtype
    return torch.float32 if casts_losses(input) and input.dtype in HALVES else input.dtype


def _check_no_group(op: str, group: Any, classes: int | None) -> None:
    if group is not None or classes is not None:
        raise RuntimeError(f"[{op}] group and classes must be None with DTensors, which know where classes are")


def _mesh_of(op: str, **tensors: Tensor | None) -> Any:
    meshes = {name: x.device_mesh for name, x in tensors.items() if isinstance(x, DTensor)}
    for name, x in tensors.items():
        if x is not None and name not in meshes:
            raise RuntimeError(f"[{op}] got mixed torch.Tensor and DTensor: {name} must be a DTensor")
    mesh, *others = meshes.values()
    if any(other != mesh for other in others):
        raise RuntimeError(f"[{op}] all DTensors must be of one mesh, got {mesh} and {others[0]}")
    return mesh


def cross_entropy_of_dtensors(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    reduction: str,
    ignore_index: int,
    dtype: torch.dtype | None,
    return_lse: bool,
    group: Any,
    classes: int | None,
    **options: Any,
) -> Any:
    op = "cross_entropy"
    _check_no_group(op, group, classes)
    mesh, logits = _mesh_of(op, input=input), added_up(input)
    dim, count = class_dim(input), input.shape[class_dim(input)]
    placements = _placements(logits)
    of_rows: Placements = [Replicate()] * mesh.ndim
    of_classes: int | None = None
    for d, placement in enumerate(placements):
        if _is_shard(placement, dim) and of_classes is None and _serves(mesh, d, count):
            of_classes = d
        elif _is_row(placement, range(dim)):
            of_rows[d] = placement
        elif _is_shard(placement) and not _is_shard(placement, dim):
            of_rows[d] = Shard(placement.dim - 1)  # type: ignore[attr-defined]
        else:
            placements[d] = Replicate()
    rows = _Rows(op, mesh, of_rows)
    x = _local(logits, placements, placements)
    y, w = rows.local("target", target), rows.whole(weight)
    options |= {"ignore_index": ignore_index, "return_lse": return_lse}
    if of_classes is not None:
        options |= {"group": mesh.get_group(of_classes), "classes": count}
    lse: list[Tensor] = []

    def loss(reduction: str, dtype: torch.dtype | None) -> Tensor:
        found = cross_entropy(x, y, w, reduction=reduction, dtype=dtype, **options)
        if not return_lse:
            return found  # type: ignore[return-value]
        lse.append(found[1])
        return found[0]

    result = rows.reduced(reduction, loss, y, w, ignore_index, count, _loss_dtype(input, dtype), target.shape)
    return (result, rows.each(lse[0], target.shape)) if return_lse else result


class _Operands(NamedTuple):
    """A linear layer's, of this process; those of classes where ``of_classes`` is a mesh dimension."""

    rows: _Rows
    of_classes: int | None
    input: Tensor
    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def of(op: str, input: Tensor, weight: Tensor, bias: Tensor | None, classes_apart: bool) -> _Operands:
        mesh = _mesh_of(op, input=input, linear_weight=weight, linear_bias=bias)
        input = added_up(input)
        of_rows: Placements = [Replicate()] * mesh.ndim
        of_weight: Placements = [Replicate()] * mesh.ndim
        of_classes: int | None = None
        for d, (of_x, of_w) in enumerate(zip(_placements(input), _placements(weight), strict=True)):
            wanted = classes_apart and of_classes is None and _is_shard(of_w, 0)
            if wanted and _serves(mesh, d, weight.shape[0]):
                of_classes, of_weight[d] = d, of_w
            elif _is_row(of_x, range(input.dim() - 1)):
                of_rows[d] = of_x
        rows = _Rows(op, mesh, of_rows)
        of_hidden = [Partial() if d == of_classes else p for d, p in enumerate(of_rows)]
        of_layer = [Partial() if p.is_partial() else of_weight[d] for d, p in enumerate(rows.sums)]
        x = _local(input, of_rows, of_hidden)
        layer, outputs = (None if p is None else _local(p, of_weight, of_layer) for p in (weight, bias))
        return _Operands(rows, of_classes, x, layer, outputs)  # type: ignore[arg-type]


def linear_cross_entropy_of_dtensors(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    *,
    ignore_index: int,
    reduction: str,
    dtype: torch.dtype | None,
    group: Any,
    classes: int | None,
    **options: Any,
) -> Tensor:
    op = "linear_cross_entropy"
    _check_no_group(op, group, classes)
    rows, of_classes, x, layer, bias = _Operands.of(op, input, linear_weight, linear_bias, True)
    y, w, count = rows.local("target", target), rows.whole(weight), linear_weight.shape[0]

    def loss(reduction: str, dtype: torch.dtype | None) -> Any:
        if of_classes is None:
            given = {"reduction": reduction, "ignore_index": ignore_index, "dtype": dtype}
            return linear_cross_entropy(x, layer, y, linear_bias=bias, weight=w, **given, **options)  # type: ignore[arg-type]
        shard = shard_of(op, layer.shape[0], count, rows.mesh.get_group(of_classes))._replace(adds_up=False)
        arguments = raw_arguments(x, layer, y, bias, w, ignore_index, reduction, dtype=dtype, classes=count, **options)
        of_loss, (result, *schedule) = arguments[5:11], arguments[11:]
        return LinearCrossEntropyOfShard.apply(
            *arguments[:5], of_loss, result or x.dtype, *schedule, shard, _derivative, _kernel
        )

    found: Tensor = rows.reduced(reduction, loss, y, w, ignore_index, count, _loss_dtype(input, dtype), target.shape)
    return found


def linear_log_prob_of_dtensors(
    input: Tensor, linear_weight: Tensor, target: Tensor, linear_bias: Tensor | None, **options: Any
) -> Any:
    """Rows may be split; a weight that has some of the classes is gathered."""
    rows, _, x, layer, bias = _Operands.of("linear_log_prob", input, linear_weight, linear_bias, False)
    found = linear_log_prob(x, layer, rows.local("target", target), linear_bias=bias, **options)
    if isinstance(found, tuple):
        return tuple(rows.each(result, target.shape) for result in found)
    return rows.each(found, target.shape)
