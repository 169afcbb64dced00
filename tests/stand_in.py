"""A call that a test makes up, in place of an operator's, for what the selftest does with calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from fastops.cases import Case, Make, RawCall, by_name


def case_of(result: Callable[[Tensor], Tensor], **options: Any) -> Case:
    """``square``'s, whose raw call gives this of its argument, which ``options`` are for."""

    class StandIn(RawCall):
        def __call__(self) -> tuple[Tensor, ...]:
            return (result(self.args[0]),)

        def with_args(self, args: tuple[object, ...]) -> RawCall:
            return StandIn(self.op, args)

    def raw(make: Make, rows: int, n: int) -> list[RawCall]:
        return [StandIn("square", (make(rows, n, **options),))]

    return replace(by_name()["square"], raw=raw)
