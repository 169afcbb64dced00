"""The deferred product: the logits of a head, which are a tensor to whoever looks and become one when they do.

The head of a language model returns one while gradients are enabled. What usually stands between a head and its loss,
scaling, a softcap, a cast, a view or a slice of the rows, gives another deferred product. ``F.cross_entropy`` of one is
:func:`fastops.linear_cross_entropy` of the head's input and weight. Anything else that reads it multiplies first, once,
and gets the very numbers that the head would have returned.

Gradients need no care: to autograd a deferred product is the output of a linear layer, and what is done with it is
recorded above the place where numbers are asked for.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only

from .._autocast import enabled
from ..families.linear_operands import matrix
from ..ops.linear_cross_entropy import linear_cross_entropy
from .calls import Calls

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_HALVES = DTYPES[:2]
_PLAIN = (Tensor, torch.nn.Parameter)
aten = torch.ops.aten


@dataclass(eq=False)
class Product:
    """The operands of one call of a head, as they were then."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    product: torch.dtype | None  # autocast's; None: it was off
    save: str  # of linear_cross_entropy
    versions: tuple[int, ...] = ()
    made: WeakSet[Deferred] = field(default_factory=WeakSet)
    read_by: str | None = None  # the first function that asked for numbers
    calls: Calls | None = None  # the head's count, until a loss of this product is in it

    def __post_init__(self) -> None:
        self.versions = self._versions()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.input, self.weight) if self.bias is None else (self.input, self.weight, self.bias)

    @property
    def dtype(self) -> torch.dtype:
        return self.product or self.input.dtype

    def _versions(self) -> tuple[int, ...]:
        return tuple(x._version for x in self.tensors)

    def check(self) -> None:
        """RuntimeError if the operands are not what they were."""
        resized = any(x.numel() and not x.untyped_storage().size() for x in self.tensors)  # sharded again
        if resized or self._versions() != self.versions:
            raise RuntimeError(
                "[patch] logits must be read before the head's weight or input changes, as by an optimizer's step: "
                "they are multiplied when they are read. To read them later, read them once before, or patch the model "
                "with loss=False"
            )

    def autocast(self) -> AbstractContextManager[Any]:
        device = self.input.device.type
        return torch.autocast(device, self.product or torch.bfloat16, enabled=self.product is not None)

    def multiplied(self) -> Tensor:
        """What the head would have returned, without a gradient."""
        self.check()
        with torch.no_grad(), self.autocast():
            return F.linear(
                self.input.detach(), self.weight.detach(), None if self.bias is None else self.bias.detach()
            )


class _Linear(torch.autograd.Function):
    """A linear layer to autograd, whose output has no numbers yet."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, product: Product) -> Tensor:
        ctx.save_for_backward(input, weight, bias)
        ctx.dtype = product.dtype
        shape = (*input.shape[:-1], weight.shape[0])
        return Deferred(_meta(shape, product.dtype), input.device, product)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (grad,), (input, weight, bias) = gradients, ctx.saved_tensors
        needed = ctx.needs_input_grad
        with torch.autocast(grad.device.type, enabled=False):
            rows, x = matrix(grad), matrix(input.to(ctx.dtype))
            of_input = (grad @ weight.to(ctx.dtype)).to(input.dtype) if needed[0] else None
            of_weight = (rows.t() @ x).to(weight.dtype) if needed[1] else None
            of_bias = rows.sum(0).to(bias.dtype) if needed[2] else None
        return of_input, of_weight, of_bias, None


class _Revealed(torch.autograd.Function):
    """A deferred product as a plain tensor, which passes its gradient on."""

    @staticmethod
    def forward(ctx: Any, deferred: Deferred) -> Tensor:
        return deferred.numbers().detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@dataclass(frozen=True)
class Meaning:
    """What a deferred product is of its head's product z: ``scale * z``, or ``cap * tanh(scale * z / cap)``.

    Rows may have been chosen or laid out anew: ``rows`` are the same steps for the head's input.
    """

    scale: float = 1.0
    cap: float | None = None
    rows: tuple[Callable[[Tensor], Tensor], ...] = ()
    classes_second: bool = False  # [B, S, V] as [B, V, S]

    def times(self, factor: float) -> Meaning | None:
        if self.cap is None:
            return replace(self, scale=self.scale * factor)
        if factor <= 0:
            return None
        return replace(self, scale=self.scale * factor, cap=self.cap * factor)

    def tanh(self) -> Meaning | None:
        return replace(self, cap=1.0) if self.cap is None else None

    def of_rows(self, step: Callable[[Tensor], Tensor]) -> Meaning | None:
        return None if self.classes_second else replace(self, rows=(*self.rows, step))


class Deferred(Tensor):
    """A tensor whose numbers are computed when they are first asked for."""

    product: Product | None  # None: it has its numbers, while torch.compile traces
    meaning: Meaning | None  # None: its numbers come late all the same, but no loss is computed without them
    _parent: Deferred | None
    _step: Callable[[Tensor], Tensor] | None
    _numbers: Tensor | None

    @staticmethod
    def __new__(
        cls,
        like: Tensor,
        device: torch.device,
        product: Product | None,
        meaning: Meaning | None = Meaning(),
        parent: Deferred | None = None,
        step: Callable[[Tensor], Tensor] | None = None,
    ) -> Deferred:
        made: Deferred = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        made.product, made.meaning = product, meaning
        made._parent, made._step, made._numbers = parent, step, None
        if product is not None:
            product.made.add(made)
        return made

    def numbers(self) -> Tensor:
        """A plain tensor without a gradient; the same one each time."""
        if self._numbers is None:
            if self._parent is not None and self._step is not None:
                with torch.no_grad():
                    self._numbers = self._step(self._parent.numbers())
            elif self.product is not None:
                self._numbers = self.product.multiplied()
            else:
                raise AssertionError("a deferred product without operands has its numbers")
        return self._numbers

    @property
    def plain(self) -> Tensor:
        """What :meth:`numbers` returns: torch.compile asks for attributes."""
        return self.numbers()

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """For torch.compile of what takes a deferred product, which then is its numbers."""
        return ["plain"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], context: None, size: Any, stride: Any) -> Tensor:
        return _with_numbers(inner["plain"], size, stride)

    @property
    def is_deferred(self) -> bool:
        return self._numbers is None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy:
            loss = _cross_entropy(args, kwargs)
            if loss is not None:
                return loss
        if func in _READ_MEMORY:
            _note(func.__name__, args, kwargs)
            args, kwargs = tree_map_only(Deferred, _revealed, (args, kwargs))
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def _stable_hash_for_caching(self) -> str:
        """For the cache of torch.compile, to which all of them are alike."""
        return f"{Deferred.__module__}.{Deferred.__name__}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        understood = _STEPS.get(func)
        if understood is not None and isinstance(args[0], Deferred) and args[0].is_deferred:
            later = _later(understood, func, args[0], args[1:], kwargs)
            if later is not None:
                return later
        found = _now(func, args, kwargs)
        if func in _COPIES and args[0].product is None:
            return _with_numbers(found, found.shape, found.stride())
        return found


def _with_numbers(numbers: Tensor, size: Any, stride: Any) -> Deferred:
    """As torch.compile makes them while it traces, of numbers that it traces."""
    made = Deferred(_meta(size, numbers.dtype, stride), numbers.device, None)
    made._numbers = numbers
    return made


def _later(understood: Any, func: Any, x: Deferred, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Deferred | None:
    """The deferred product of a step, or None if it is not one for later."""
    if kwargs.get("device") not in (None, x.device):
        return None
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    try:
        like = func(_meta(x.shape, x.dtype, x.stride()), *args, **kwargs)
        found = understood(x, like, *args, **kwargs)
    except (TypeError, RuntimeError):  # for whom the error is meant gets it from the numbers
        return None
    if found is None or like.dtype not in DTYPES:
        return None
    # Without gradients is also where an autograd.Function makes it, which has a backward of its own.
    meaning = found.meaning if torch.is_grad_enabled() else None
    return Deferred(like, x.device, x.product, meaning, x, lambda y: func(y, *args, **kwargs))


def _now(func: Any, args: Any, kwargs: Any) -> Any:
    """Any function, of the numbers. One that writes into them returns the tensor that it was given."""
    given: dict[int, Deferred] = {}
    _note(str(func), args, kwargs)
    if func._schema.is_mutable:
        for x in _deferred(args, kwargs):
            for other in list(x.product.made) if x.product else ():  # which would else read what was written
                other.numbers()

    def plain(x: Deferred) -> Tensor:
        given[id(x.numbers())] = x
        return x.numbers()

    args, kwargs = tree_map_only(Deferred, plain, (args, kwargs))
    found = func(*args, **kwargs)
    return tree_map_only(Tensor, lambda y: given.get(id(y), y), found) if func._schema.is_mutable else found


def _note(name: str, *values: Any) -> None:
    for x in _deferred(*values):
        if x.product is not None and x.product.read_by is None:
            x.product.read_by = name


def _deferred(*values: Any) -> Iterator[Deferred]:
    for value in values:
        if isinstance(value, Deferred):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _deferred(*value)
        elif isinstance(value, dict):
            yield from _deferred(*value.values())


def _revealed(x: Deferred) -> Tensor:
    return _Revealed.apply(x) if x.requires_grad and torch.is_grad_enabled() else x.numbers()


def _meta(shape: Any, dtype: torch.dtype, strides: Any = None) -> Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


@dataclass(frozen=True)
class _Understood:
    meaning: Meaning | None


def _of(meaning: Meaning | None) -> _Understood:
    return _Understood(meaning)


def _times(x: Deferred, like: Tensor, factor: Any) -> _Understood | None:
    if not _is_number(factor):
        return None
    return _of(x.meaning and x.meaning.times(float(factor)))


def _divided(x: Deferred, like: Tensor, divisor: Any) -> _Understood | None:
    if not _is_number(divisor) or divisor == 0:
        return None
    return _of(x.meaning and x.meaning.times(1 / divisor))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _tanh(x: Deferred, like: Tensor) -> _Understood:
    return _of(x.meaning and x.meaning.tanh())


def _same(x: Deferred, like: Tensor, *args: Any, **kwargs: Any) -> _Understood:
    return _of(x.meaning)


def _laid_out(x: Deferred, like: Tensor, *args: Any) -> _Understood | None:
    classes = x.shape[-1]
    if x.meaning is None or x.meaning.classes_second or like.shape[-1:] != x.shape[-1:] or classes < 2:
        return None
    rows = like.shape[:-1]
    return _of(x.meaning.of_rows(lambda y: y.reshape(*rows, y.shape[-1])))


def _chosen(func: Any, x: Deferred, like: Tensor, dim: int = 0, *args: Any, **kwargs: Any) -> _Understood | None:
    if dim % x.dim() == x.dim() - 1:
        return None
    return _of(x.meaning and x.meaning.of_rows(lambda y: func(y, dim, *args, **kwargs)))


def _turned(x: Deferred, like: Tensor, first: int, second: int) -> _Understood | None:
    if x.dim() != 3 or {first % 3, second % 3} != {1, 2} or x.meaning is None or x.meaning.classes_second:
        return None
    return _of(replace(x.meaning, classes_second=True))


# What is understood: from the deferred product, the result's shape and the other arguments to the result's meaning.
_STEPS: dict[Any, Callable[..., _Understood | None]] = {
    aten.mul.Tensor: _times,
    aten.mul.Scalar: _times,
    aten.div.Tensor: _divided,
    aten.div.Scalar: _divided,
    aten.tanh.default: _tanh,
    aten._to_copy.default: _same,
    aten.clone.default: _same,
    aten.alias.default: _same,
    aten.detach.default: _same,
    aten.view.default: _laid_out,
    aten._unsafe_view.default: _laid_out,
    aten._reshape_alias.default: _laid_out,
    aten.unsqueeze.default: _laid_out,
    aten.squeeze.dim: _laid_out,
    aten.slice.Tensor: functools.partial(_chosen, aten.slice.Tensor),
    aten.select.int: functools.partial(_chosen, aten.select.int),
    aten.transpose.int: _turned,
}
# What torch.compile makes its inputs of, which are to be of one type.
_COPIES = (aten.clone.default, aten.alias.default, aten.detach.default)
# What looks at memory without asking the dispatcher.
_READ_MEMORY = {
    Tensor.__array__,
    Tensor.__deepcopy__,
    Tensor.__dlpack__,
    Tensor.__reduce_ex__,
    Tensor.__repr__,
    Tensor.data_ptr,
    Tensor.numpy,
    Tensor.share_memory_,
    Tensor.tolist,
}
_CROSS_ENTROPY = inspect.signature(F.cross_entropy)


def _cross_entropy(args: Any, kwargs: Any) -> Tensor | None:
    """The loss of a deferred product without its numbers, or None if it is not that of one."""
    bound = _CROSS_ENTROPY.bind(*args, **kwargs)
    bound.apply_defaults()
    x, target, weight, size_average, ignore_index, reduce, reduction, smoothing = bound.arguments.values()
    if size_average is not None or reduce is not None or not isinstance(x, Deferred) or not _is_connected(x):
        return None
    meaning, product = x.meaning, x.product
    if (
        meaning is None
        or product is None
        or x.dim() != (3 if meaning.classes_second else 2)
        or x.dtype == torch.float64 != product.dtype
    ):
        return None
    rows = (*x.shape[:1], *x.shape[2:])
    if type(target) is not Tensor or target.dtype != torch.int64 or target.shape != rows or target.device != x.device:
        return None
    if weight is not None and (type(weight) not in _PLAIN or weight.requires_grad or weight.dtype != x.dtype):
        return None
    product.check()
    device = x.device.type
    computed = torch.float32 if x.dtype in _HALVES and enabled(device) else x.dtype
    hidden = product.input
    for step in meaning.rows:
        hidden = step(hidden)
    if weight is not None and weight.dtype != hidden.dtype:  # then it is in float32, or becomes so exactly
        weight = weight.float()
    with product.autocast():
        loss = linear_cross_entropy(
            hidden,
            product.weight,
            target,
            linear_bias=product.bias,
            weight=weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=smoothing,
            scale=meaning.scale,
            softcap=meaning.cap,
            dtype=computed,
            save=product.save,
        )
    if product.calls is not None:
        product.calls.ran += 1
        product.calls = None
    return loss


def _is_connected(x: Deferred) -> bool:
    """Whether its gradient goes to the head's operands, all the way, and nobody waits for it on the way."""
    if not x.is_deferred or not torch.is_grad_enabled() or not x.requires_grad:
        return False
    each: Deferred | None = x
    while each is not None:
        if each.is_leaf or each._backward_hooks or each.retains_grad:
            return False
        each = each._parent
    return True


def deferred(head: torch.nn.Module, input: Tensor, save: str, calls: Calls | None = None) -> Tensor | None:
    """The head's product, deferred; None where it has to be multiplied at once. ``calls`` counts its first loss.

    At once: without gradients, under torch.compile, ``torch.func`` or forward mode, in a trace; of weights that are no
    plain tensors, such as quantised and sharded ones; of a head with hooks, which may take the weight away after it.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return None
    weight: Any = head.weight
    bias: Any = head.bias
    tensors: tuple[Any, ...] = (input, weight) if bias is None else (input, weight, bias)
    if any(type(x) not in _PLAIN or x.device != input.device or x.dtype not in DTYPES for x in tensors):
        return None
    if any(x.is_inference() for x in tensors):  # which do not count their changes
        return None
    if not any(x.requires_grad for x in tensors) or input.dim() < 1 or input.shape[-1] != weight.shape[-1]:
        return None
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return None
    if torch._C._get_tracing_state() is not None or has_hooks(head):
        return None
    device = input.device.type
    if device == "meta":
        return None
    cast = enabled(device) and all(x.dtype != torch.float64 for x in tensors)
    if not cast and any(x.dtype != input.dtype for x in tensors):
        return None
    product = Product(input, weight, bias, torch.get_autocast_dtype(device) if cast else None, save, calls=calls)
    return _Linear.apply(input, weight, bias, product)  # type: ignore[no-any-return]


def has_hooks(head: torch.nn.Module) -> bool:
    return bool(head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks)
