"""A shard of the classes: the processes of a group have them one behind the other, all rows, and the same targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import type_error


class Shard(NamedTuple):
    group: Any  # torch.distributed.ProcessGroup
    first_class: int
    classes: int  # of all shards


def check_group(op: str, group: Any, classes: object) -> None:
    if classes is not None and (isinstance(classes, bool) or not isinstance(classes, int)):
        raise type_error(op, "classes", "an integer or None", classes)
    if group is None:
        if classes is not None:
            raise RuntimeError(f"[{op}] classes must be None without a group, got {classes}")
        return
    from torch import distributed  # its import takes time that few need

    if not isinstance(group, distributed.ProcessGroup):
        raise type_error(op, "group", "a torch.distributed.ProcessGroup or None", group)


def shard_of(op: str, count: int, classes: int | None, group: Any) -> Shard:
    """Of a process that has ``count`` classes. ``classes`` in all; None: each process has as many."""
    from torch import distributed

    processes, rank = distributed.get_world_size(group), distributed.get_rank(group)
    if classes is None:
        return Shard(group, rank * count, processes * count)
    each = -(-classes // processes)
    first = rank * each
    expected = min(each, classes - first)
    if classes <= (processes - 1) * each:  # which all of them find
        raise RuntimeError(
            f"[{op}] classes must give each of {processes} processes one, {each} at a time, got {classes}"
        )
    if count != expected:
        raise RuntimeError(
            f"[{op}] process {rank} of {processes} must have {expected} of {classes} classes, those from {first} on, "
            f"got {count}"
        )
    return Shard(group, first, classes)


def gathered(part: Tensor, shard: Shard) -> Tensor:
    """The processes' tensors, [processes, ...], in their order."""
    from torch import distributed

    processes = distributed.get_world_size(shard.group)
    parts = part.new_empty(processes, *part.shape)
    # The form with one tensor has another name from torch 2.13 on.
    distributed.all_gather(list(parts.unbind()), part, group=shard.group)
    return parts


def added(part: Tensor, shard: Shard) -> Tensor:
    """The sum of the processes' tensors, in place."""
    from torch import distributed

    distributed.all_reduce(part, group=shard.group)
    return part


def check_first_derivative(op: str) -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError(f"[{op}] with a group there are no second derivatives: expected no create_graph=True")
