"""An op with a sample's arguments, and what every check does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Args = tuple[Any, ...]
Change = Callable[[Tensor], Tensor]


class Skip(Exception):
    """The check has no meaning here; the message says why."""


class Case(NamedTuple):
    """``op`` at one sample; the fields are :func:`check`'s."""

    op: Callable[..., Any]
    name: str
    args: Args
    dtypes: tuple[torch.dtype, ...]
    unsupported: Mapping[str, str]
    backend: str

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(described, self.args))})"

    @property
    def device(self) -> torch.device:
        return next(x.device for x in self.args if isinstance(x, Tensor))

    @property
    def floating(self) -> list[int]:
        """The places of the floating-point tensors."""
        return [k for k, x in enumerate(self.args) if isinstance(x, Tensor) and x.is_floating_point()]

    def copied(self) -> Case:
        return self._replace(args=mapped(lambda x: x.detach().clone(), self.args))

    def moved(self, device: str) -> Args:
        return mapped(lambda x: x.to(device), self.args)

    def of(self, dtype: torch.dtype) -> Args:
        return mapped(lambda x: x.to(dtype) if x.is_floating_point() else x, self.args)

    def in_float64(self) -> Case:
        """The same where finite differences and truths can be had."""
        if torch.float64 not in self.dtypes:
            raise Skip("the op does not take float64, without which nothing is known to compare with")
        return self._replace(args=self.of(torch.float64))

    def outputs(self, args: Args) -> list[Tensor]:
        return list(tensors(self.op(*args)))

    def gradients(self, args: Args, change: Change = lambda g: g, op: Callable[..., Any] | None = None) -> list[Tensor]:
        """Of the outputs' product with fixed numbers, for every floating-point argument.

        ``change`` is what the gradients that come in go through, ``op`` another form of the op.
        """
        if not self.floating:
            raise Skip("no floating-point argument")
        args = leaves(args)
        outputs = [y for y in tensors((op or self.op)(*args)) if y.is_floating_point()]
        if not outputs:
            raise Skip("no floating-point output")
        outputs = [y for y in outputs if y.requires_grad]
        if not outputs:
            raise RuntimeError(f"[{self.name}] no output requires grad, though the arguments do")
        inputs = [args[k] for k in self.floating]
        found = torch.autograd.grad(outputs, inputs, [change(cotangent(y)) for y in outputs], allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]

    def needs_gradient(self) -> None:
        """For what is about gradients; that there is none is told under ``gradient``."""
        if "gradient" in self.unsupported:
            raise Skip("there is no gradient")

    def everything(self, args: Args) -> list[Tensor]:
        """Outputs and gradients; without these where there are none to be had."""
        outputs = self.outputs(args)
        if "gradient" in self.unsupported:
            return outputs
        try:
            return outputs + self.gradients(args)
        except Skip:
            return outputs


def described(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{short(x.dtype)}{list(x.shape)} {x.device}"
    return repr(x)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def mapped(change: Change, args: Args) -> Args:
    return tuple(change(x) if isinstance(x, Tensor) else x for x in args)


def tensors(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def leaves(args: Args) -> Args:
    """The floating-point tensors as leaves that require grad, with their strides."""
    return mapped(lambda x: x.detach().requires_grad_(x.is_floating_point()), args)


def cotangent(y: Tensor) -> Tensor:
    """Numbers of no pattern that the user's random state has no part in."""
    return torch.arange(1, y.numel() + 1, device=y.device, dtype=torch.float64).cos().view(y.shape).to(y.dtype)
