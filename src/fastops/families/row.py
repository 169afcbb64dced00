"""The row operators: functions of one tensor along one dimension of it, whose backward reads the output alone.

Such an operator has two raw ops: ``name(input, dim, scale, dtype)`` and ``name_backward(grad, output, dim, scale,
dtype)``. ``dtype`` is the result's: the output's, to which input is converted first, and the gradient's, which is that
of the forward's input. Results are contiguous. The public function counts ``dim`` from the end, where a batch
that ``torch.func.vmap`` puts in front does not shift it, and leaves out what the schema has as default: an argument
takes 0.1 to 0.2 us.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_numbers, type_error
from .._autocast import computes_wide
from .._operator import Operator, elementwise_batch
from ..sharding import all_but

HALVES = (torch.float16, torch.bfloat16)
_DIM, _SCALE = -1, 1.0  # the schema's defaults


def row_arguments(op: str, input: Tensor, dim: int, scale: float, dtype: torch.dtype | None) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments. ``input`` is converted here where no kernel does it."""
    try:
        own, dims = input.dtype, input.dim()
    except AttributeError:
        raise type_error(op, "input", "a Tensor", input) from None
    if type(dim) is not int:
        dim = as_integer(op, dim)
    if type(scale) is not float:
        check_numbers(op, scale=scale)
    if not -dims <= dim < 0:
        dim = from_the_end(op, dim, dims)
    if dtype is not None:
        input, dtype = _of_dtype(op, input, dtype)
    elif computes_wide(input) and own in HALVES:
        dtype = torch.float32
    if dtype is not None:
        return input, dim, scale, dtype
    if scale != _SCALE:
        return input, dim, scale
    return (input,) if dim == _DIM else (input, dim)


def as_integer(op: str, dim: Any) -> int:
    if isinstance(dim, bool) or not isinstance(dim, (Integral, torch.SymInt)):
        raise type_error(op, "dim", "an integer", dim)
    return int(dim)


def from_the_end(op: str, dim: int, dims: int, name: str = "input") -> int:
    """IndexError, as torch's, where there is no such dimension. A tensor of none has one to name."""
    count = dims or 1
    if not -count <= dim < count:
        raise IndexError(f"[{op}] dim must be {-count} to {count - 1} for {name}'s {dims} dimensions, got {dim}")
    return dim if dim < 0 else dim - count


def _of_dtype(op: str, input: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.dtype | None]:
    """``input`` of this dtype. float32 of a half type is left to the kernel, which needs no copy for it."""
    if not isinstance(dtype, torch.dtype):
        raise type_error(op, "dtype", "a torch.dtype or None", dtype)
    _check_floating(op, dtype)
    if dtype == torch.float32 and input.dtype in HALVES:
        return input, dtype
    return (input if input.dtype == dtype else input.to(dtype)), None


def check(op: str, input: Tensor, dim: int, dtype: torch.dtype | None) -> None:
    """What the C++ host checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    if dtype is None and not input.is_floating_point():
        raise RuntimeError(f"[{op}] input must be floating point, got {input.dtype}")
    _check_floating(op, dtype)
    from_the_end(op, dim, input.dim())


def _check_floating(op: str, dtype: torch.dtype | None) -> None:
    if dtype is not None and not dtype.is_floating_point:
        raise RuntimeError(f"[{op}] dtype must be floating point, got {dtype}")


def scaled(input: Tensor, scale: float) -> Tensor:
    """``scale·input`` by torch's own ops, not rounded to a half type. TorchScript reads this too."""
    if scale == 1.0:
        return input
    half = input.dtype == torch.float16 or input.dtype == torch.bfloat16
    return (input.float() if half else input) * scale


def row_operator(
    name: str,
    reference: Callable[..., Tensor],
    backward_reference: Callable[..., Tensor],
    native: Callable[..., Tensor],
) -> Operator:
    """The operator ``name``, its backward among them. ``native`` is the same function by torch's own op."""

    def fake(input: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        check(name, input, dim, dtype)
        return input.new_empty(input.shape, dtype=dtype)

    def fake_backward(
        grad: Tensor, output: Tensor, dim: int = -1, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        return output.new_empty(output.shape, dtype=dtype)

    derivative = Operator(f"{name}_backward", backward_reference, fake_backward, batch=_batch, sharding=all_but("dim"))

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.options = inputs[1:] if len(inputs) < 4 else (*inputs[1:3], inputs[0].dtype)

    def backward(ctx: Any, grad: Tensor) -> Any:
        options = ctx.options
        gradient = derivative.call(grad, *ctx.saved_tensors, *options)
        return (gradient, *(None,) * len(options)) if options else gradient

    return Operator(
        name,
        reference,
        fake,
        save=save,
        backward=backward,
        native=native,
        batch=_batch,
        sharding=all_but("dim"),
    )


def _batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...] | None:
    """One more dimension in front, but not of numbers, of which each would then be a row's element."""
    moved = elementwise_batch(size, in_dims, *inputs)
    return moved if moved[0].dim() > 1 else None
