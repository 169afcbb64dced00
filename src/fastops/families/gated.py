"""The gated linear units: an activation of a gate times another tensor, of two tensors or of one that has both.

Such an operator has two raw ops: ``name(first, second, dim, interleaved, limit, offset, row_scale, *options)`` and
``name_backward(grad, *of the forward, needs_scale)``, which returns the gradients of ``first``, ``second`` and
``row_scale``. Without ``second``, ``first`` has both parts along ``dim``. The public function counts ``dim`` from the
end, where a batch that ``torch.func.vmap`` puts in front does not shift it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from .._arguments import check_numbers, check_tensors, type_error
from .._operator import Operator, elementwise_batch, wide
from .._promotion import product_dtype
from ..sharding import EMPTY, Call, Output, Split, apart
from .row import as_integer, from_the_end

Three = tuple[Tensor, Tensor, Tensor]
_DEFAULTS: tuple[Any, ...] = (None, -1, False, None, 0.0, None)  # the schema's, of what follows `first`
_ROW_SCALE = 6  # where it is among the inputs


class Unit(NamedTuple):
    """An operator of the family: the activation and its derivative take the gate, in the type that is computed in."""

    name: str
    value: Callable[..., Tensor]
    slope: Callable[..., Tensor]
    first: str = "gate"
    second: str = "up"
    up_first: bool = False  # what is gated comes before the gate
    options: tuple[Any, ...] = ()  # the activation's own, behind the gate: their defaults
    torchs: Callable[..., Tensor] | None = None  # the same activation by an op of torch's, where it has one

    def gate_and_up(self, first: Tensor, second: Tensor | None, dim: int, interleaved: bool) -> tuple[Tensor, Tensor]:
        a, b = (first, second) if second is not None else split(first, dim, interleaved)
        return (b, a) if self.up_first else (a, b)

    def composed(self, first: Tensor, *given: Any) -> Tensor:
        """The operator by torch's own."""
        second, dim, interleaved, limit, offset, row_scale, *options = self.complete(given)
        gate, up = (wide(x) for x in self.gate_and_up(first, second, dim, interleaved))
        gate, up = _clamped(gate, up, limit)
        y = self.value(gate, *options) * (up + offset)
        if row_scale is not None:
            y = (_of_rows(row_scale, y) * y).contiguous()
        return y.to(first.dtype)

    def native(self, first: Tensor, *given: Any) -> Tensor:
        """The same for traces, exports and nested tensors, which know torch's own activation best."""
        return self._replace(value=self.torchs or self.value).composed(first, *given)

    def reference(self, first: Tensor, *given: Any) -> Tensor:
        """The same, once the arguments fit."""
        second, dim, interleaved, _, _, row_scale, *_ = self.complete(given)
        check(self, first, second, dim, interleaved, row_scale)
        return self.composed(first, *given)

    def backward_reference(self, grad: Tensor, first: Tensor, *given: Any) -> Three:
        """The gradients of first, second and row_scale; tensors without elements for what is not there."""
        second, dim, interleaved, limit, offset, row_scale, *options, needs_scale = given
        gate, up = (wide(x) for x in self.gate_and_up(first, second, dim, interleaved))
        low, within = _clamped(gate, up, limit)
        act, shifted, g = self.value(low, *options), within + offset, wide(grad)
        scaled = g if row_scale is None else _of_rows(row_scale, g) * g
        of_gate, of_up = scaled * shifted * self.slope(low, *options), scaled * act
        if limit is not None:
            of_gate, of_up = torch.where(gate > limit, 0, of_gate), torch.where(up.abs() > limit, 0, of_up)
        pair = (of_up, of_gate) if self.up_first else (of_gate, of_up)
        a, b = (x.to(first.dtype) for x in pair)
        of_scale = _empty_gradients(first, *given)[2]
        if needs_scale:
            of_scale = (g * (act * shifted)).sum(-1).to(row_scale.dtype)
        if second is None:
            return _laid_out(join(a, b, dim, interleaved), first, row_scale), first.new_empty(0), of_scale
        return _laid_out(a, first, row_scale), _laid_out(b, second, row_scale), of_scale

    def complete(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the schema's defaults for what was left out."""
        return (*given, *(_DEFAULTS + self.options)[len(given) :])


def split(x: Tensor, dim: int, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The two parts of a tensor that has both."""
    last = dim
    if interleaved:
        # Not by unflatten, nor flatten below, which have no rule in torch.autograd's own vmap.
        at = dim % x.dim()
        x = x.unflatten(dim, (-1, 2)) if x.is_nested else x.view(*x.shape[:at], x.shape[at] // 2, 2, *x.shape[at + 1 :])
        last = dim if dim < 0 else dim + 1
    if x.is_nested:  # neither whose narrow nor whose select has a gradient
        first, second = x.chunk(2, last)
        return (first.squeeze(last), second.squeeze(last)) if interleaved else (first, second)
    if interleaved:  # not by select, whose gradient fails where a DTensor's is in shards
        return x.narrow(last, 0, 1).squeeze(last), x.narrow(last, 1, 1).squeeze(last)
    half = x.size(dim) // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, half)


def join(first: Tensor, second: Tensor, dim: int, interleaved: bool) -> Tensor:
    if not interleaved:
        return torch.cat((first, second), dim)
    dim = dim % first.dim()
    shape = first.shape
    return torch.stack((first, second), dim + 1).reshape(*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])


def _clamped(gate: Tensor, up: Tensor, limit: Optional[float]) -> tuple[Tensor, Tensor]:  # noqa: UP045 - TorchScript
    """Not by clamp, whose derivative at the limit itself depends on torch's version."""
    if limit is None:
        return gate, up
    low = torch.where(up < -limit, -limit, up)
    return torch.where(gate > limit, limit, gate), torch.where(up > limit, limit, low)


def _of_rows(scale: Tensor, rows: Tensor) -> Tensor:
    return scale.to(rows.dtype).unsqueeze(-1)


def check(unit: Unit, first: Tensor, second: Tensor | None, dim: int, interleaved: bool, row_scale: Any) -> None:
    """What the C++ host checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    name, shape = unit.name, list(first.shape)
    dim = from_the_end(name, dim, first.dim(), unit.first) + (len(shape) or 1)
    for what, tensor in ((unit.first, first), ("row_scale", row_scale)):
        if tensor is not None and not tensor.is_floating_point():
            raise RuntimeError(f"[{name}] {what} must be floating point, got {tensor.dtype}")
    if second is None:
        if not shape or shape[dim] % 2:
            raise RuntimeError(
                f"[{name}] {unit.first} must have an even size along dim {dim} without {unit.second}, got shape {shape}"
            )
    elif second.dtype != first.dtype:
        raise RuntimeError(f"[{name}] {unit.second} must have {unit.first}'s dtype {first.dtype}, got {second.dtype}")
    elif list(second.shape) != shape:
        raise RuntimeError(f"[{name}] {unit.second} must have {unit.first}'s shape {shape}, got {list(second.shape)}")
    elif interleaved:
        raise RuntimeError(f"[{name}] interleaved must be False with {unit.second}, got True")
    if row_scale is None:
        return
    if dim != len(shape) - 1 or interleaved:
        by_turns = ", interleaved" if interleaved else ""
        raise RuntimeError(
            f"[{name}] row_scale needs halves along the last dimension, got dim {dim} of {shape}{by_turns}"
        )
    if list(row_scale.shape) != shape[:-1]:
        raise RuntimeError(f"[{name}] row_scale must have shape {shape[:-1]}, got {list(row_scale.shape)}")


def gated_operator(unit: Unit, reference: Callable[..., Tensor], backward_reference: Callable[..., Three]) -> Operator:
    """The operator, its backward among them."""

    def fake(first: Tensor, *given: Any) -> Tensor:
        second, dim, interleaved, _, _, row_scale, *_ = unit.complete(given)
        check(unit, first, second, dim, interleaved, row_scale)
        a, b = unit.gate_and_up(first, second, dim, interleaved)
        return a.new_empty(a.shape) if row_scale is not None else torch.add(*((b, a) if unit.up_first else (a, b)))

    def fake_backward(grad: Tensor, first: Tensor, *given: Any) -> Three:
        return _empty_gradients(first, *given)

    def vmap_backward(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        results = derivative._twin(*elementwise_batch(info.batch_size, in_dims, *inputs))
        return results, (0, None if inputs[2] is None else 0, 0 if inputs[-1] else None)

    derivative = Operator(
        f"{unit.name}_backward",
        backward_reference,
        fake_backward,
        outputs=3,
        vmap=vmap_backward,
        sharding=functools.partial(_sharding_backward, unit),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        second, dim, interleaved, limit, offset, row_scale, *options = unit.complete(inputs[1:])
        ctx.save_for_backward(inputs[0], second, row_scale)
        ctx.options = (dim, interleaved, limit, offset), options

    def backward(ctx: Any, grad: Tensor) -> Any:
        first, second, row_scale = ctx.saved_tensors
        numbers, options = ctx.options
        needed = ctx.needs_input_grad
        needs_scale = len(needed) > _ROW_SCALE and needed[_ROW_SCALE]
        found: list[Any] = [None] * len(needed)
        of_first, of_second, of_scale = derivative.call(grad, first, second, *numbers, row_scale, *options, needs_scale)
        for k, gradient in ((0, of_first), (1, of_second), (_ROW_SCALE, of_scale)):
            if k < len(needed) and needed[k]:
                found[k] = gradient
        return tuple(found) if len(found) > 1 else found[0]

    return Operator(
        unit.name,
        reference,
        fake,
        save=save,
        backward=backward,
        native=unit.native,
        batch=elementwise_batch,
        sharding=functools.partial(_sharding, unit),
    )


def _sharding(unit: Unit, call: Call) -> Split:
    """A tensor that has both parts is not split along them: a process would have gates of one and ups of another."""
    shape = call.shapes[unit.first]
    dims = tuple(range(len(shape)))
    both = None if unit.second in call.shapes else call["dim"] % len(shape)
    inputs = {name: dims[:-1] if name == "row_scale" else dims for name in call.shapes}
    return Split(inputs, [Output(dims)], apart(d for d in dims if d != both))


def _sharding_backward(unit: Unit, call: Call) -> Split:
    inputs, (whole,), free, _ = _sharding(unit, call)
    second = whole if unit.second in call.shapes else EMPTY
    scale = Output(whole.dims[:-1], sums=whole.dims[-1:]) if call["needs_scale"] else EMPTY
    return Split(inputs, [whole, second, scale], free)


def _empty_gradients(first: Tensor, *given: Any) -> Three:
    second, row_scale, needs_scale = given[0], given[_ROW_SCALE - 1], given[-1]
    return (
        _empty_like(first, row_scale),
        first.new_empty(0) if second is None else _empty_like(second, row_scale),
        row_scale.new_empty(row_scale.shape) if needs_scale else wide(first.new_empty(0)),  # no two results are one
    )


def _laid_out(gradient: Tensor, tensor: Tensor, row_scale: Tensor | None) -> Tensor:
    """With the strides of :func:`_empty_like`, which the condition's are, and not by a write: vmap allows none."""
    if row_scale is not None:
        return gradient.contiguous()
    return torch.where(torch.ones_like(tensor, dtype=torch.bool), gradient, 0)


def _empty_like(tensor: Tensor, row_scale: Tensor | None) -> Tensor:
    """A gradient of ``tensor``: of rows that have a scale it is contiguous."""
    return tensor.new_empty(tensor.shape) if row_scale is not None else torch.empty_like(tensor)


def _check_numbers(name: str, limit: float | None, **numbers: float) -> None:
    check_numbers(name, limit=limit, **numbers)
    if limit is not None and not limit >= 0:
        raise ValueError(f"[{name}] limit must be at least 0 or None, got {limit}")


def checked_numbers(name: str, limit: float | None, alpha: float, offset: float) -> tuple[float | None, float, float]:
    """As a module keeps them: TorchScript tells a float from an integer."""
    _check_numbers(name, limit, alpha=alpha, offset=offset)
    return None if limit is None else float(limit), float(alpha), float(offset)


def by_torch(
    name: str,
    gate: Tensor,
    up: Optional[Tensor],  # noqa: UP045 - TorchScript
    dim: int,
    interleaved: bool,
    limit: Optional[float],  # noqa: UP045
    alpha: float,
    offset: float,
) -> Tensor:
    """A gated linear unit by torch's own ops, for TorchScript."""
    if up is None:
        if interleaved:
            pairs = gate.movedim(dim, -1).unflatten(-1, [-1, 2])
            g, u = pairs[..., 0].movedim(-1, dim), pairs[..., 1].movedim(-1, dim)
        else:
            g, u = gate.chunk(2, dim)
    else:
        g, u = gate, up
    dtype = torch.result_type(g, u)
    g, u = g.to(dtype), u.to(dtype)
    if g.dtype == torch.float16 or g.dtype == torch.bfloat16:
        g, u = g.float(), u.float()
    g, u = _clamped(g, u, limit)
    if name == "swiglu":
        a = g * torch.sigmoid(alpha * g)
    elif name == "geglu":
        a = F.gelu(g)
    elif name == "geglu_tanh":
        a = F.gelu(g, approximate="tanh")
    elif name == "reglu":
        a = F.relu(g)
    else:
        a = torch.sigmoid(g)
    return (a * (u + offset)).to(dtype)


def _alike(first: object, second: object) -> bool:
    """Whether they are tensors of one dtype, or one that has dimensions."""
    if not isinstance(first, Tensor):
        return False
    return first.dim() > 0 if second is None else isinstance(second, Tensor) and first.dtype == second.dtype


def gated_arguments(
    unit: Unit,
    first: Tensor,
    second: Tensor | None,
    dim: int,
    interleaved: bool,
    limit: float | None,
    offset: float,
    row_scale: Tensor | None,
    *options: Any,
) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments, without those that are the schema's defaults."""
    plain = limit is None and row_scale is None and interleaved is False and options == unit.options
    if plain and type(dim) is int and dim == -1 and type(offset) is float and offset == 0.0 and _alike(first, second):
        return (first,) if second is None else (first, second)
    name = unit.name
    check_tensors(name, **{unit.first: first})
    if second is not None:
        check_tensors(name, **{unit.second: second})
        if first.dtype != second.dtype:
            dtype = product_dtype((first, second))
            first, second = first.to(dtype), second.to(dtype)
    if type(dim) is not int:
        dim = as_integer(name, dim)
    if dim != -1:
        dim = from_the_end(name, dim, first.dim(), unit.first)
    if type(interleaved) is not bool:
        raise type_error(name, "interleaved", "a bool", interleaved)
    if not first.dim() and (second is None or row_scale is not None):  # under vmap a batch would be its dimension
        check(unit, first, second, dim, interleaved, row_scale)
    if limit is not None or type(offset) is not float:
        _check_numbers(name, limit, offset=offset)
    if row_scale is not None:
        check_tensors(name, row_scale=row_scale)
        if interleaved and second is None:  # which no kernel takes beside a row's scale
            check(unit, first, None, dim, False, row_scale)
            first, second = split(first, dim, True)
            interleaved = False
        return first, second, dim, interleaved, limit, offset, row_scale, *options
    if options != unit.options:
        return first, second, dim, interleaved, limit, offset, None, *options
    if limit is not None or offset != 0.0:
        return first, second, dim, interleaved, limit, offset
    if dim != -1 or interleaved:
        return first, second, dim, interleaved
    return (first,) if second is None else (first, second)
