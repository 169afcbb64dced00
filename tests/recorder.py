"""Which code ran. Values cannot tell: the plain composition gives the same ones."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """The calls of our raw ops: their names and their arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.args: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "fastops":
            self.ops.append(func._opname)
            self.args.append(args)
        return func(*args, **(kwargs or {}))
