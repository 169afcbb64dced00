"""Derivatives that are nowhere declared: a backward from the plain composition, forward mode from a backward."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .sharding import added_up

# Of inputs, outputs and needs_input_grad: of each output whether an input that needs a gradient reaches it. None: all.
Reach = Callable[[tuple[Any, ...], tuple[Any, ...], tuple[bool, ...]], "tuple[bool, ...] | None"]


def reach_of(inputs_of_each: Sequence[Iterable[int]]) -> Reach:
    """Of each output which inputs it is a function of, by their numbers."""
    inputs_of = [tuple(those) for those in inputs_of_each]  # Dynamo of torch 2.10 takes no range from a closure

    def reach(inputs: tuple[Any, ...], outputs: tuple[Any, ...], needed: tuple[bool, ...]) -> tuple[bool, ...]:
        count = len(needed)  # lists, because Dynamo of torch 2.10 traces no generator here
        return tuple([True in [needed[k] for k in those if k < count] for those in inputs_of])

    return reach


def mark_constant(
    ctx: Any, reach: Reach | None, inputs: tuple[Any, ...], outputs: tuple[Any, ...], statistics: tuple[Any, ...] = ()
) -> None:
    """Outputs without a gradient: what no input that needs one reaches, integers, and ``statistics``."""
    reached = reach(inputs, outputs, ctx.needs_input_grad) if reach else None
    constant = [
        y
        for k, y in enumerate(outputs)
        if not ((reached is None or reached[k]) and (y.is_floating_point() or y.is_complex()))
    ]
    constant += statistics
    if constant:
        ctx.mark_non_differentiable(*constant)


def unused_as_none(ctx: Any) -> None:
    """The gradients of outputs that were not used come as None. As zeros they would be plain tensors of DTensors, too.

    Under Dynamo, which does not know it, zeros come.
    """
    if not torch.compiler.is_dynamo_compiling():
        ctx.set_materialize_grads(False)


def filled(grads: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of outputs, 0 for those that were not used."""
    return tuple([torch.zeros_like(y) if g is None else g for g, y in zip(grads, outputs, strict=True)])


_vjp: Callable[..., tuple[Any, Callable[..., tuple[Tensor, ...]]]] = torch.func.vjp  # type: ignore[assignment]


def vjp_of(function: Callable[..., Any], *primals: Tensor) -> tuple[Any, Callable[..., tuple[Tensor, ...]]]:
    """``torch.func.vjp``; by autograd where saved tensors have hooks, as in ``save_on_cpu``, which it refuses."""
    if torch.compiler.is_dynamo_compiling():
        return _vjp(function, *primals)
    try:
        return _vjp(function, *primals)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
    with torch.enable_grad():
        at = tuple([x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in primals])
        outputs = function(*at)

    def pullback(grads: Any) -> tuple[Tensor, ...]:
        pairs = zip(outputs, grads, strict=True) if isinstance(outputs, tuple) else ((outputs, grads),)
        found = [(y, g) for y, g in pairs if y.requires_grad]
        if not found:
            return tuple([torch.zeros_like(x) for x in at])
        ys, gs = zip(*found, strict=True)
        return torch.autograd.grad(ys, at, gs, create_graph=torch.is_grad_enabled(), materialize_grads=True)

    return outputs, pullback


def save_inputs(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    """What :func:`backward_of` a reference reads."""
    unused_as_none(ctx)
    ctx.tensors_at = [k for k, x in enumerate(inputs) if isinstance(x, Tensor)]
    ctx.inputs = [None if isinstance(x, Tensor) else x for x in inputs]
    ctx.save_for_backward(*(inputs[k] for k in ctx.tensors_at))


def backward_of(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The backward of a function that is known only by its plain composition."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        inputs = list(ctx.inputs)
        for k, tensor in zip(ctx.tensors_at, ctx.saved_tensors, strict=True):
            inputs[k] = added_up(tensor)  # to a partial sum torch 2.10 adds a number once in each process
        wanted = [k for k in ctx.tensors_at if ctx.needs_input_grad[k]]
        moving = [k for k, g in enumerate(grads) if g is not None and (g.is_floating_point() or g.is_complex())]

        if not moving:  # torch.compile traces the backward of a mask too
            return (None,) * len(inputs)

        def of_wanted(*values: Any) -> Any:
            for k, value in zip(wanted, values, strict=True):
                inputs[k] = value
            outputs = reference(*inputs)
            return outputs if isinstance(outputs, Tensor) else tuple([outputs[k] for k in moving])

        outputs, vjp = vjp_of(of_wanted, *(inputs[k] for k in wanted))
        found = vjp(tuple([grads[k] for k in moving]) if isinstance(outputs, tuple) else grads[0])
        result: list[Any] = [None] * len(inputs)
        for k, gradient in zip(wanted, found, strict=True):
            result[k] = gradient
        return tuple(result)

    return backward


class _Kept:
    """The ``ctx`` that ``save`` gets for forward mode, in which no input of autograd's needs a gradient."""

    def __init__(self, inputs: tuple[Any, ...], output: Any) -> None:
        self.needs_input_grad = tuple(
            isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex()) for x in inputs
        )
        outputs = output if isinstance(output, tuple) else (output,)
        self.outputs = len(outputs)
        # Integer outputs have no tangent.
        self.moving = {
            k: (y.shape, {"dtype": y.dtype, "device": y.device})
            for k, y in enumerate(outputs)
            if y.is_floating_point() or y.is_complex()
        }
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None: ...


def keep_for_forward(save: Callable[..., None], ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """What :func:`transposed` reads."""
    ctx.kept = _Kept(inputs, output)
    save(ctx.kept, inputs, output)
    ctx.save_for_forward(*ctx.kept.saved_tensors)
    ctx.kept.saved_tensors = ()


class _Transposing(threading.local):
    """State of a thread: whether it runs a backward for :func:`transposed`.

    Nothing moves in there. But functorch enables forward mode again below the vjp, where saved tensors are dual: a
    backward that calls its own op would be transposed without an end.
    """

    active = False


_transposing = _Transposing()


def transposed(backward: Callable[..., Any], ctx: Any, *tangents: Any) -> Any:
    """Return the outputs' tangents, the transpose of ``backward``, by its own gradient. An integer output has None."""
    kept = ctx.kept
    kept.saved_tensors = ctx.saved_tensors
    zeros = [torch.zeros(shape, **like) for shape, like in kept.moving.values()]
    moved: list[Any] = []

    def pullback(*grads: Any) -> tuple[Any, ...]:
        found = zip(backward(kept, *_at(kept, grads)), tangents, strict=True)
        # As autograd takes it, which sums the gradient of a broadcast input and rounds that of a promoted one.
        pairs = [(g.sum_to_size(t.shape).to(t.dtype), t) for g, t in found if g is not None and t is not None]
        moved[:] = [t for _, t in pairs]
        return tuple(gradient for gradient, _ in pairs)

    found: Sequence[Tensor] = zeros
    if zeros and not _transposing.active:
        _transposing.active = True
        try:
            _, vjp = vjp_of(pullback, *zeros)
        finally:
            _transposing.active = False
        found = vjp(tuple(moved))
    return _at(kept, found) if kept.outputs > 1 else _at(kept, found)[0]


def _at(kept: _Kept, values: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return one value for each output: ``values`` are of those that have tangents, the others get None."""
    value_of = dict(zip(kept.moving, values, strict=True))
    return tuple([value_of.get(k) for k in range(kept.outputs)])
