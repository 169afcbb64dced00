"""What an operator does on DTensors: the raw ops of ours that it calls, and collectives, in these and beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

_OF_COLLECTIVES = {"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d", "_dtensor"}
_NAMES = ("all", "reduce", "broadcast", "gather", "scatter", "shard_dim_alltoall")


@dataclass(frozen=True)
class RawOp:
    """One call of a raw op on DTensors."""

    op: torch._ops.OpOverload
    arguments: Mapping[str, Any]  # by the schema's names, in its order
    outputs: tuple[Any, ...]
    collectives: int


class Calls(TorchDispatchMode):
    """Records them while it is entered. ``beside``: collectives that are in no op, ours or torch's, on DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.ours: list[RawOp] = []
        self.beside = 0
        self._within = 0
        self._inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented if self._inside else self._of_shards(func, args, kwargs)
        if isinstance(func, torch._ops.OpOverload) and _is_collective(func):
            if self._inside:
                self._within += 1
            else:
                self.beside += 1
        return func(*args, **kwargs)

    def _of_shards(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._inside, self._within = True, 0
        try:
            with self:  # asked again, it leaves the op to DTensor, and sees what that does
                found = func(*args, **kwargs)
        finally:
            self._inside = False
        if func.namespace == "fastops":
            outputs = found if isinstance(found, tuple) else (found,)
            self.ours.append(RawOp(func, _bound(func, args, kwargs), outputs, self._within))
        return found


def _is_collective(op: torch._ops.OpOverload) -> bool:
    name = op._schema.name.partition("::")[2]
    return op.namespace in _OF_COLLECTIVES and name.lstrip("_").startswith(_NAMES)


def _bound(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        argument.name: args[k] if k < len(args) else kwargs.get(argument.name, argument.default_value)
        for k, argument in enumerate(op._schema.arguments)
    }
