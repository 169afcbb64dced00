"""The operators that torch dispatches to, with what goes in and what comes out."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode


class Dispatched(NamedTuple):
    name: str  # as "aten::mm"
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Any, ...]

    def again(self) -> tuple[Any, ...]:
        return as_tuple(self.operator(*self.args, **self.kwargs))


class Calls(TorchDispatchMode):
    """Those of them meanwhile, beneath autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.all = list[Dispatched]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        name = function.name().partition(".")[0]
        self.all.append(Dispatched(name, function, args, kwargs or {}, as_tuple(found)))
        return found

    def of(self, *names: str) -> list[Dispatched]:
        return [call for call in self.all if call.name in names]

    @property
    def ours(self) -> list[Dispatched]:
        return [call for call in self.all if call.name.startswith("fastops::")]


def as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, tuple | list) else (out,)
