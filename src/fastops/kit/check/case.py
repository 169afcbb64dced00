"""An op with a sample's arguments, and what every check does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Args = tuple[Any, ...]
GIVEN = "given"  # of check's gradient=
Change = Callable[[Tensor], Tensor]


class Skip(Exception):
    """The check has no meaning here; the message says why."""


class Case(NamedTuple):
    """``op`` at one sample, of which the last are the keyword arguments ``names``; the others are :func:`check`'s.

    ``truth`` is its ``reference=``, ``slope`` its ``gradient=``.
    """

    op: Callable[..., Any]
    name: str
    args: Args
    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    unsupported: Mapping[str, str]
    backend: str
    truth: Callable[..., Any] | None
    slope: Callable[..., Any] | str | None

    def __str__(self) -> str:
        first = len(self.args) - len(self.names)
        named = [f"{name}={described(x)}" for name, x in zip(self.names, self.args[first:], strict=True)]
        return f"{self.name}({', '.join([*map(described, self.args[:first]), *named])})"

    def label(self, k: int) -> str:
        """What messages call an argument."""
        first = len(self.args) - len(self.names)
        return f"argument {k}" if k < first else f"argument {self.names[k - first]}"

    @property
    def function(self) -> Callable[..., Any]:
        """Of all arguments by position."""
        return by_position(self.op, self.names)

    @property
    def reference(self) -> Callable[..., Any] | None:
        """What the op is to compute, of all arguments by position; an op of the kit may have it by itself."""
        if self.truth:
            return by_position(self.truth, self.names)
        plain, dispatched = getattr(self.op, "reference", None), getattr(self.op, "dispatched", None)
        if plain is None or dispatched is None:
            return None
        return by_position(lambda *args, **kwargs: plain(*dispatched(*args, **kwargs)[1]), self.names)

    @property
    def primitive(self) -> Callable[..., Any]:
        """The function whose derivative the gradient is to be.

        Raises:
            Skip: there is none.
        """
        if self.slope == GIVEN:
            raise Skip(f"gradient={GIVEN!r}: it is the derivative of no function")
        return by_position(self.slope, self.names) if callable(self.slope) else self.function

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
        return list(tensors(self.function(*args)))

    def gradients(
        self,
        args: Args,
        change: Change = lambda g: g,
        op: Callable[..., Any] | None = None,
        wanted: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Of the outputs' product with fixed numbers, for every floating-point argument.

        ``change`` is what the gradients that come in go through, ``op`` another form of the op, and ``wanted`` the
        places of those arguments that require grad.
        """
        if not self.floating:
            raise Skip("no floating-point argument")
        places = self.floating if wanted is None else wanted
        args = leaves(args, places)
        outputs = [y for y in tensors((op or self.function)(*args)) if y.is_floating_point()]
        if not outputs:
            raise Skip("no floating-point output")
        inputs = [args[k] for k in places]
        outputs = [y for y in outputs if y.requires_grad]
        if not outputs:
            if wanted is not None:
                return [torch.zeros_like(x) for x in inputs]
            raise RuntimeError(f"[{self.name}] no output requires grad, though the arguments do")
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


def by_position(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """``function`` of the last arguments by these names, called without them."""
    if not names:
        return function

    def call(*given: Any) -> Any:
        first = len(given) - len(names)
        return function(*given[:first], **dict(zip(names, given[first:])))  # noqa: B905

    return call


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


def leaves(args: Args, places: Sequence[int] | None = None) -> Args:
    """The floating-point tensors, or those at these places, as leaves that require grad, with their strides."""
    return tuple(
        x.detach().requires_grad_(x.is_floating_point() if places is None else k in places)
        if isinstance(x, Tensor)
        else x
        for k, x in enumerate(args)
    )


def cotangent(y: Tensor) -> Tensor:
    """Numbers of no pattern that the user's random state has no part in."""
    return torch.arange(1, y.numel() + 1, device=y.device, dtype=torch.float64).cos().view(y.shape).to(y.dtype)
