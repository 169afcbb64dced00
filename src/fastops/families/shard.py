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

    def count_of(self, rank: int, processes: int) -> int:
        """How many classes a process must have: equal numbers of them, but the last, which has those that are left."""
        each = -(-self.classes // processes)
        return min(each, self.classes - rank * each)


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

    One more row tells of each whether it has the classes that it must. Where one has not: RuntimeError on the CPU, on
    GPUs, for which nobody waits, NaN.
    """
    from torch import distributed

    processes, rank = distributed.get_world_size(shard.group), distributed.get_rank(shard.group)
    rows = part.reshape(-1, part.shape[-1])
    mine = rows.new_empty(rows.shape[0] + 1, rows.shape[1])
    mine[:-1] = rows
    mine[-1] = shard.classes if count == shard.count_of(rank, processes) else torch.nan  # by a fill: nobody waits
    if part.is_cpu:  # for the error's sentence
        mine[-1, 1:3] = rows.new_tensor([count, shard.first_class])
    parts = mine.new_empty(processes * mine.shape[0], mine.shape[1])
    # The form with one tensor has another name from torch 2.13 on.
    gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    gather(parts, mine, group=shard.group)
    parts = parts.view(processes, *mine.shape)
    found, of_all = parts[:, :-1], parts[:, -1:, :1]
    fits = of_all == shard.classes
    if not part.is_cpu:
        found = torch.where(fits, found, torch.nan)
    elif not fits.all():
        counts, firsts = (number.long().tolist() for number in parts[:, -1, 1:3].unbind(1))
        raise RuntimeError(
            f"[{op}] the processes must have classes that follow each other, {shard.classes} in all, got {counts} from "
            f"{firsts} on"
        )
    return found.reshape(processes, *part.shape)


def added(part: Tensor, shard: Shard) -> Tensor:
    """The sum of the processes' tensors, in place."""
    from torch import distributed

    distributed.all_reduce(part, group=shard.group)
    return part


def check_first_derivative(op: str) -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError(f"[{op}] with a group there are no second derivatives: expected no create_graph=True")
