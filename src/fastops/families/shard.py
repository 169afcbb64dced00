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
    adds_up: bool = True  # the gradient of what all processes have; else each is left with a summand

    def has_room(self, count: int) -> bool:
        """Whether so many classes are not too many; if they are, all processes are to hear of it."""
        return self.first_class + count <= self.classes


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


def check_no_transform(op: str) -> None:
    if torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"[{op}] a group takes no torch.func transforms: expected autograd alone")


def shard_of(op: str, count: int, classes: int | None, group: Any) -> Shard:
    """Of a process that has ``count`` classes. ``classes`` in all; None: each process has as many.

    That this process has what it must is for ``gathered`` to say, on all processes at once: one alone would leave the
    others waiting.
    """
    from torch import distributed

    processes, rank = distributed.get_world_size(group), distributed.get_rank(group)
    if classes is None:
        return Shard(group, rank * count, processes * count)
    each = -(-classes // processes)
    if classes <= (processes - 1) * each:  # which all of them find
        raise RuntimeError(
            f"[{op}] classes must give each of {processes} processes some, {each} a process, got {classes}"
        )
    return Shard(group, rank * each, classes)


def gathered(op: str, part: Tensor, count: int, shard: Shard) -> Tensor:
    """The processes' numbers of rows, [processes, *, 4], in their order.

    One more row tells how many classes each has, and which. Where they do not fit together: RuntimeError on the CPU, on
    GPUs, for which nobody waits, NaN.
    """
    from torch import distributed

    processes = distributed.get_world_size(shard.group)
    rows = part.reshape(-1, part.shape[-1])
    mine = rows.new_empty(rows.shape[0] + 1, rows.shape[1])
    mine[:-1] = rows
    for k, number in enumerate((count, shard.first_class, shard.classes, 0)):  # by fills, for which nobody waits
        mine[-1, k] = number
    parts = mine.new_empty(processes, *mine.shape)
    # The form with one tensor has another name from torch 2.13 on.
    distributed.all_gather(list(parts.unbind()), mine, group=shard.group)
    counts, firsts, classes, _ = parts[:, -1].unbind(1)
    fit = (classes == classes[0]).all() & (counts.sum() == classes[0]) & (firsts == counts.cumsum(0) - counts).all()
    if part.is_cpu and not fit:
        raise RuntimeError(
            f"[{op}] the processes must have classes that follow each other, {shard.classes} in all, got "
            f"{counts.long().tolist()} from {firsts.long().tolist()} on"
        )
    found = parts[:, :-1]
    if not part.is_cpu:
        found = torch.where(fit, found, torch.nan)
    return found.reshape(processes, *part.shape)


def added(part: Tensor, shard: Shard) -> Tensor:
    """The sum of the processes' tensors, in place."""
    from torch import distributed

    distributed.all_reduce(part, group=shard.group)
    return part


def check_first_derivative(op: str) -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError(f"[{op}] with a group there are no second derivatives: expected no create_graph=True")
