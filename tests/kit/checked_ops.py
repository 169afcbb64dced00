"""Ops for the tests of kit.check: right ones, and the means to make them wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastops import kit

sample = torch.tensor([[0.3, -1.2, 0.7], [2.1, -0.4, 1.6]])


def square(**changes: Any) -> Any:
    """A right op, with changes."""
    parts: dict[str, Any] = {
        "cpu": lambda x: x * x,
        "cuda": lambda x: x * x,
        "reference": lambda x: x * x,
        "backward": lambda grad, x: 2 * x * grad,
    }
    return kit.op("kit_test::square(Tensor x) -> Tensor", **parts | changes)


def overwrite(x: Tensor) -> Tensor:
    result = x * x
    x.zero_()
    return result


def memory_order(x: Tensor) -> Tensor:
    """Reads memory as if it were contiguous."""
    flat = x.as_strided((x.numel(),), (1,)) if x.numel() else x.flatten()
    return (flat * flat).view(x.shape)


def product(**changes: Any) -> Any:
    parts: dict[str, Any] = {"reference": lambda x, y: x * y, "backward": lambda grad, x, y: (grad * y, grad * x)}
    return kit.op("kit_test::product(Tensor x, Tensor y) -> Tensor", **parts | changes)


def wrong_alone(grad: Tensor, x: Tensor, y: Tensor, needs: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """Where only one gradient is wanted there is another code, and a fault in it."""
    return (grad * y, grad * x) if all(needs) else (grad * x, grad * x)


def wrong_from(place: int, by: float = 0.01) -> Callable[[Tensor], Tensor]:
    """Right up to an element that a small sample has not."""

    def kernel(x: Tensor) -> Tensor:
        result = (x * x).contiguous()
        result.view(-1)[place:] += by
        return result

    return kernel


def centred(vmap: str | None) -> Any:
    """Its elements meet."""
    return kit.op(
        "kit_test::centred(Tensor x) -> Tensor",
        cpu=lambda x: x - x.mean(),
        reference=lambda x: x - x.mean(),
        backward=lambda grad: grad - grad.mean(),
        vmap=vmap,
    )


def refuse(*inputs: Any) -> Any:
    raise kit.KitError("[square] cannot do this")
