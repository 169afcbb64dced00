"""Which outputs of a kit.op are functions of inputs that need a gradient: tried out, since kernels do not tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .._derivative import Reach


def by_reference(reference: Callable[..., Any]) -> Reach:
    """An output is reached if torch's autograd finds that of the reference to be."""

    def tried(inputs: tuple[Any, ...], outputs: tuple[Tensor, ...], needed: tuple[bool, ...]) -> tuple[bool, ...]:
        found = reference(*[x if need else _constant(x) for x, need in zip(inputs, needed, strict=True)])
        return tuple([y.requires_grad for y in found])

    return _remembered(tried)


def by_backward(save: Callable[..., None], backward: Callable[..., Any], public: int) -> Reach:
    """An output is reached if a gradient that is needed is a function of that output's own; those behind all are."""

    def tried(inputs: tuple[Any, ...], outputs: tuple[Tensor, ...], needed: tuple[bool, ...]) -> tuple[bool, ...]:
        zero = next(x for x, need in zip(inputs, needed, strict=True) if need).sum() * 0  # which requires a gradient
        ctx = _Context(needed)
        save(ctx, tuple([_constant(x) for x in inputs]), tuple([_constant(y) for y in outputs]))
        zeros = [torch.zeros_like(y) for y in outputs[:public]]
        hidden = [None] * (len(outputs) - public)

        def is_read(k: int) -> bool:
            grads = [g + zero.to(g.dtype) if j == k else g for j, g in enumerate(zeros)]
            return any(isinstance(g, Tensor) and g.requires_grad for g in backward(ctx, *grads, *hidden))

        return (*[is_read(k) for k in range(public)], *[True for _ in hidden])

    return _remembered(tried)


class _Context:
    """The ``ctx`` of a try."""

    def __init__(self, needed: tuple[bool, ...]) -> None:
        self.needs_input_grad = needed
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None: ...


def _constant(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _remembered(tried: Reach) -> Reach:
    """``tried`` where torch.compile traces it; else on fake tensors, once for what decides."""
    known: dict[Any, tuple[bool, ...] | None] = {}

    def reach(
        inputs: tuple[Any, ...], outputs: tuple[Tensor, ...], needed: tuple[bool, ...]
    ) -> tuple[bool, ...] | None:
        if torch.compiler.is_dynamo_compiling():
            with torch.enable_grad():
                return tried(inputs, outputs, needed)
        if torch._C._are_functorch_transforms_active():
            return None
        kinds = [(x.dtype, x.dim()) if isinstance(x, Tensor) else repr(x) for x in inputs]
        key = (needed, *kinds)
        if key not in known:
            known[key] = _on_fakes(tried, inputs, outputs, needed)
        return known[key]

    return reach


def _on_fakes(
    tried: Reach, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> tuple[bool, ...] | None:
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():

            def fake(x: Any, need: bool = False) -> Any:
                return mode.from_tensor(x.detach()).requires_grad_(need) if isinstance(x, Tensor) else x

            fakes = tuple(fake(x, need) for x, need in zip(inputs, needed, strict=True))
            return tried(fakes, tuple(map(fake, outputs)), needed)
    except Exception:  # of a kernel that is called by itself, of a size that depends on values: then all are reached
        return None
