"""From one declaration an operator that is cheap in eager mode and right under every transform.

A raw op (``torch.ops.fastops.x``) carries kernels and a fake, no autograd. :class:`Differentiable` adds what a user
expects of a PyTorch function:

* nothing asks for a derivative: the raw op is called as it is;
* plain eager and ``torch.compile``: a ``ctx``-style ``autograd.Function``, the cheapest kind;
* under ``torch.func`` transforms: its ``setup_context`` twin, with a ``vmap`` rule;
* forward-mode derivatives, and dtypes without a kernel: the plain reference, which PyTorch differentiates itself. (A
  ``jvp`` rule on the twin gives wrong results when forward mode is nested: only an op whose derivative is not its
  reference's has one, and refuses nesting.)
* nested and sparse tensors, ``torch.jit.trace``, ONNX: torch's own ops of the same function.

First derivatives come from the declared ``backward``, which calls kernels. What lies beyond, the derivative of a
backward or a batch that a kernel cannot take, comes from the reference too.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import Tensor
from torch._functorch import eager_transforms
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import Function, forward_ad

from . import _flops
from ._arguments import check_types
from ._derivative import Reach, backward_of, keep_for_forward, mark_constant, save_inputs, transposed
from ._registration import announced, on_one_device
from .sharding import Rule, is_sharded, lazy, pointwise

_functorch_active = torch._C._are_functorch_transforms_active
_compiling = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_any_requires_grad = torch._C._any_requires_grad
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_batched = torch._C._functorch.is_legacy_batchedtensor
_tracing = torch._C._get_tracing_state
_strided = torch.strided

KERNEL_DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
EVERY_DTYPE = frozenset(x for x in vars(torch).values() if isinstance(x, torch.dtype))

OPERATORS: dict[str, Operator] = {}  # every one that was made, by its raw op's name

WRITERS: dict[str, torch._ops.OpOverload] = {}  # those that write to an argument; nothing differentiates them

_library = torch.library.Library("fastops", "FRAGMENT")


class Differentiable:
    """A raw op with its plain reference and its derivative; ``call`` is the differentiable function.

    Args:
        name: for messages and in ``grad_fn``.
        raw: the op, which has kernels and a fake already. Its first argument is a Tensor.
        reference: the same function in plain PyTorch, same arguments. It takes the dtypes that the kernels do not, and
            is the source of second derivatives, forward mode and unusual batches.
        save: ``save(ctx, inputs, outputs)`` keeps what ``backward`` needs; without ``backward``, all inputs are kept.
        backward: ``backward(ctx, *grad_outputs)`` returns a gradient or None for each input. None: derived from the
            reference.
        outputs: how many outputs are differentiable; those after them are statistics for ``backward``. One that is
            neither floating point nor complex is not, wherever it is.
        reach: ``reach(inputs, needs_input_grad)`` tells of each output whether an input that needs a gradient reaches
            it. None: each is reached.
        native: the same function by torch's own ops, same arguments. Default: the reference.
        forward: the op that returns those statistics too, where this one does not. Default: this one.
        batch: ``batch(size, in_dims, *inputs)`` returns the inputs with the batch as leading dimension, if the raw op
            then treats its elements apart, or None. Without it every batch goes through ``torch.vmap`` of the
            reference.
        vmap: ``vmap(info, in_dims, *inputs)`` returns outputs and their batch dimensions, in place of all that.
        training: an op of the same function that eager mode and ``torch.compile`` take where a gradient is asked for,
            but not for DTensors. Default: this one.
        direct: does what ``raw`` does, for plain eager calls, on less host time. It sees tensor subclasses too.
        inline: ``torch.compile`` traces the references, so that they fuse with what is around them; else the raw ops.
        dtypes: of the first argument: those that the raw op takes.
        overrides: ``backward`` is what counts, where the reference's derivative differs (a straight-through
            estimator's): forward mode takes its transpose, and nothing differentiates the reference in its place. The
            raw op must take every dtype.
        sharding: how the raw op splits among processes: a rule of :mod:`fastops.sharding`. None: no DTensors.
    """

    def __init__(
        self,
        name: str,
        raw: torch._ops.OpOverload,
        reference: Callable[..., Any],
        *,
        save: Callable[..., None] | None = None,
        backward: Callable[..., Any] | None = None,
        outputs: int = 1,
        reach: Reach | None = None,
        native: Callable[..., Any] | None = None,
        forward: Differentiable | None = None,
        batch: Callable[..., Any] | None = None,
        vmap: Callable[..., Any] | None = None,
        training: Differentiable | None = None,
        direct: Callable[..., Any] | None = None,
        inline: bool = False,
        dtypes: Container[torch.dtype] = KERNEL_DTYPES,
        overrides: bool = False,
        sharding: Rule | None = None,
    ) -> None:
        self.name = name
        self.raw = raw
        if sharding:
            lazy.declare(raw, sharding)
        self.reference = reference
        self.outputs = outputs
        self.reach = reach
        self.native = native or reference
        self.forward = forward or self
        self.batch = batch
        self.vmap = vmap
        self.training = training or self
        # The builtin behind the overload saves a Python frame, its packet's a list too; Dynamo wants the overload.
        self.direct = direct or raw.overloadpacket._op
        self.traced = reference if inline else raw
        self._is_reference = inline and not backward  # its derivative too: torch.compile needs no more than to trace it
        self.dtypes = EVERY_DTYPE if overrides else dtypes
        self.overrides = overrides
        self.save = save if save and backward else save_inputs
        self.backward = backward or backward_of(reference)
        self._eager = _eager_function(self.training, self.training.forward.traced, name).apply
        self._eager_of_shards = self._eager
        if self.training is not self:
            self._eager_of_shards = _eager_function(self, self.forward.traced, name).apply
        self._twin = _uncompiled(_twin_function(self).apply)
        self.call = _call_of(self)

    def _transformed(self, inputs: tuple[Any, ...]) -> Any:
        if _compiling():
            lazy.registered_before_tracing()
        else:
            check_types(self.name, self.raw._schema, inputs)
            if _tracing() and not self.overrides:  # of the raw op a trace would have no gradient
                return self.native(*inputs)
        if self.overrides and (_functorch_active() or forward_ad._current_level >= 0):
            if _compiling() or eager_transforms.JVP_NESTING > 1:
                raise NotImplementedError(
                    f"[{self.name}] torch.func inside torch.compile, and forward mode inside forward mode, cannot take "
                    "a given backward=: expected torch.compile inside torch.func, or jacrev for one jacfwd"
                )
            return self._twin(*inputs)
        if forward_ad._current_level >= 0 or inputs[0].dtype not in self.dtypes:
            return self.reference(*inputs)
        if not _compiling():
            return self._twin(*inputs)
        if not self.overrides and any([_is_nested(x) for x in inputs]):  # noqa: C419 - for Dynamo
            return self.native(*inputs)
        if _functorch_active() or self._is_reference:
            return self.reference(*inputs)
        needed = tuple([isinstance(x, Tensor) and x.requires_grad for x in inputs])
        if not (_grad_enabled() and True in needed):
            return self.traced(*inputs)
        if self.outputs == 1 and self.reach and self.reach(inputs, (), needed) == (False,):
            return self.traced(*inputs)  # Dynamo takes no Function whose only output is marked
        eager = self._eager_of_shards if is_sharded(inputs[0]) else self._eager
        return eager(*_distinct(inputs))

    def _is_natives(self, x: Tensor) -> bool:
        """Whether a tensor of a subclass is for torch's own ops: jagged, or on its way into an ONNX graph."""
        if type(x) is torch.nn.Parameter or self.overrides:
            return False
        return x.is_nested or torch.onnx.is_in_onnx_export()

    def _of_batched(self, *inputs: Any) -> Any:
        if self.overrides:
            raise NotImplementedError(
                f"[{self.name}] is_grads_batched=True and vectorize=True with create_graph=True cannot take a given "
                "backward=: expected torch.func, or one gradient at a time"
            )
        return self.reference(*inputs)


class Operator(Differentiable):
    """An op of ours: ``torch.ops.fastops.<name>``, whose schema is in C++, and mostly its kernels.

    Args:
        name: the raw op's.
        reference: it is the kernel too for devices that ours do not take.
        fake: the same arguments to empty outputs of the right shape, strides and dtype.
        kernel: of an op that is composed of torch's and ours: what runs on the CPU and on CUDA.
        flops: the FLOPs of the matrix products in a call, from the op's arguments with shapes in place of tensors.
            None: the op multiplies no matrices.
        derivative: see :class:`Differentiable`.
    """

    def __init__(
        self,
        name: str,
        reference: Callable[..., Any],
        fake: Callable[..., Any],
        *,
        kernel: Callable[..., Any] | None = None,
        flops: _flops.Formula | None = None,
        **derivative: Any,
    ) -> None:
        self.composed = kernel is not None
        if kernel:
            for device in ("CPU", "CUDA"):
                _library.impl(name, kernel, device)
        torch.library.register_fake(f"fastops::{name}", on_one_device(name, fake), lib=_library)
        for op in (name, f"{name}_reference"):
            _library.impl(op, announced(reference), "CompositeExplicitAutograd")
        super().__init__(name, getattr(torch.ops.fastops, name).default, reference, **derivative)
        if flops:
            _flops.declare(self.raw, flops)
        OPERATORS[name] = self


def writing_operator(name: str, reference: Callable[..., Tensor]) -> torch._ops.OpOverload:
    """A raw op of ours that writes to its last argument what ``reference`` makes of the others."""

    def write(*inputs: Any) -> None:
        inputs[-1].copy_(reference(*inputs[:-1]))

    torch.library.register_fake(f"fastops::{name}", on_one_device(name, lambda *inputs: None), lib=_library)
    for op in (name, f"{name}_reference"):
        _library.impl(op, announced(write), "CompositeExplicitAutograd")
    WRITERS[name] = getattr(torch.ops.fastops, name).default
    return WRITERS[name]


def _call_of(op: Differentiable) -> Callable[..., Any]:
    """The way of a call. On small inputs its cost is what is timed: one frame, and questions that C answers."""
    outputs, dtypes = op.outputs, op.dtypes
    whole = len(op.raw._schema.returns) == outputs
    raw = op.direct
    apply = _apply_of(op.training, op.name)
    shards_apart = op.training is not op
    apply_to_shards = _apply_of(op, op.name) if shards_apart else apply

    def call(*inputs: Any) -> Any:
        first = inputs[0]
        try:
            plain = first.dtype not in dtypes
        except AttributeError:
            check_types(op.name, op.raw._schema, inputs)
            raise
        if plain or _compiling() or _functorch_active() or forward_ad._current_level >= 0 or _tracing():
            return _public(op._transformed(inputs), outputs)
        if type(first) is not Tensor and op._is_natives(first):
            return _public(op.native(*inputs), outputs)
        try:
            if _grad_enabled():
                # torch.autograd's own vmap, under which a Function would lose the graph and nothing says it is wanted.
                if _batched(first):
                    return _public(op._of_batched(*inputs), outputs)
                if _any_requires_grad(*inputs):
                    if first.layout is not _strided and not op.overrides:
                        return _public(op.native(*inputs), outputs)
                    for x in inputs:
                        if type(x) is Tensor and _wrapped(x):  # it outlived its transform
                            return apply(*unwrap_dead_wrappers(inputs))
                    if shards_apart and is_sharded(first):
                        return apply_to_shards(*inputs)
                    return apply(*inputs)
            result = raw(*inputs)
        except (RuntimeError, TypeError) as error:
            if isinstance(error, NotImplementedError):
                if lazy.registered_now():
                    return call(*inputs)
                if not op.overrides and any(map(_is_nested, inputs)):
                    return _public(op.native(*inputs), outputs)
            check_types(op.name, op.raw._schema, inputs)
            _raise_typed(error)
            raise
        return result if whole else _public(result, outputs)

    return call


def _apply_of(op: Differentiable, name: str) -> Callable[..., Any]:
    """The builtin behind Function.apply, which saves a Python frame; Dynamo wants that."""
    function = _eager_function(op, op.forward.direct, name)
    # The engine calls the node's `apply`, which would look `backward` up in two frames more, 1 us of a step's 27.
    function._backward_cls.apply = op.backward  # type: ignore[attr-defined]
    return super(Function, function).apply  # type: ignore[misc,no-any-return]


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where Dynamo gave a frame up it begins again inside it, and would take a twin's rules for plain functions."""
    disabled: Callable[..., Any] | None = None

    def call(*inputs: Any) -> Any:
        nonlocal disabled
        if disabled is None and (dynamo := sys.modules.get("torch._dynamo")):
            disabled = dynamo.disable(lambda *inputs: function(*inputs))
        return (disabled or function)(*inputs)

    return call


def _public(result: Any, outputs: int) -> Any:
    """The differentiable outputs, without the statistics behind them."""
    if type(result) is not tuple:
        return result
    return result[0] if outputs == 1 else result[:outputs]


def _is_nested(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_nested


def _distinct(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Dynamo does not trace a Function that is given one tensor twice."""
    seen: list[Any] = []
    for x in inputs:
        repeated = isinstance(x, Tensor) and any(x is y for y in seen)
        seen.append(x.view_as(x) if repeated else x)
    return tuple(seen)


_kept = threading.local()
_OUT_OF_RANGE = re.compile(r"\[\w+\] target must be 0 to -?\d+ or ignore_index -?\d+, got -?\d+")


def keep_error(error: BaseException) -> None:
    """Called where an exception is about to cross the stable ABI, to be raised again on the other side."""
    _kept.error = error


def _raise_typed(error: Exception) -> None:
    """Errors cross the stable ABI as text, before torch 2.13 not even that; types that people catch come back here."""
    kept, _kept.error = getattr(_kept, "error", None), None
    if kept is not None:
        said = str(kept) or type(kept).__name__  # of an error without a text, such as Ctrl-C's
        if "its message is on stderr" in str(error) or said in str(error):
            raise kept from None
    if found := _OUT_OF_RANGE.search(str(error)):
        raise IndexError(found[0]) from None
    if "CUDA out of memory" in str(error) and not isinstance(error, torch.OutOfMemoryError):
        raise torch.OutOfMemoryError(str(error)) from None


def _eager_function(op: Differentiable, raw: Callable[..., Any], name: str) -> type[Function]:
    """``name`` is what users see of it: ``grad_fn=<reluBackward>``."""
    save, outputs, reach = op.save, op.outputs, op.reach  # no bound method: Dynamo of torch 2.10 cannot hold one
    whole = len(op.forward.raw._schema.returns) == outputs

    def forward(ctx: Any, *inputs: Any) -> Any:
        try:
            result = raw(*inputs)
        except RuntimeError as error:
            _raise_typed(error)
            raise
        save(ctx, inputs, result)
        if outputs > 1:
            mark_constant(ctx, reach, inputs, result[:outputs])
        elif reach:
            mark_constant(ctx, reach, inputs, (result if whole else result[0],))
        return result if whole else result[0] if outputs == 1 else result[:outputs]

    methods = {"forward": staticmethod(forward), "backward": staticmethod(op.backward)}
    return type(name, (Function,), methods)


def _twin_function(op: Differentiable) -> type[Function]:
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        op.save(ctx, inputs, output)
        if op.overrides and forward_ad._current_level >= 0:
            keep_for_forward(op.save, ctx, inputs, output)
        several = output if isinstance(output, tuple) else (output,)
        reach = None if forward_ad._current_level >= 0 else op.reach  # of which tangents tell nothing
        mark_constant(ctx, reach, inputs, several[: op.outputs], several[op.outputs :])

    def backward(ctx: Any, *grads: Any) -> Any:
        return op.backward(ctx, *grads[: op.outputs])

    rules: dict[str, Any] = {"setup_context": staticmethod(setup_context), "backward": staticmethod(backward)}
    if op.overrides:
        rules["jvp"] = staticmethod(functools.partial(transposed, op.backward))
    # Under vmap of a reference whose derivative is another: that derivative, batched by functorch.
    plain: Any = type(
        op.name,
        (Function,),
        {**rules, "forward": staticmethod(lambda *inputs: op.reference(*inputs)), "generate_vmap_rule": True},
    )

    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        batched = op.batch(info.batch_size, in_dims, *inputs) if op.batch else None
        reference = plain.apply if op.overrides else op.forward.reference
        out = op._twin(*batched) if batched else torch.vmap(reference, in_dims)(*inputs)
        return out, tuple(0 for _ in out) if isinstance(out, tuple) else 0

    def forward(*inputs: Any) -> Any:
        try:
            return op.forward.raw(*inputs)
        except RuntimeError as error:
            _raise_typed(error)
            raise

    methods = {**rules, "forward": staticmethod(forward), "vmap": staticmethod(op.vmap or vmap)}
    return type(op.name, (Function,), methods)


def elementwise_batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
    """The ``batch`` rule of an op whose tensors all have one shape."""
    return tuple(
        x.movedim(d, 0) if d is not None else x.expand(size, *x.shape) if isinstance(x, Tensor) else x
        for x, d in zip(inputs, in_dims, strict=True)
    )


def elementwise(
    name: str,
    reference: Callable[..., Any],
    backward_reference: Callable[..., Any],
    *,
    keeps: str,
    training: Operator | None = None,
) -> Operator:
    """The operator of an elementwise function of one tensor whose backward reads what it ``keeps``: input or output."""
    derivative = Operator(
        f"{name}_backward",
        backward_reference,
        lambda grad, kept: torch.empty_like(kept),
        batch=elementwise_batch,
        sharding=pointwise(),
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output if keeps == "output" else inputs[0])

    def backward(ctx: Any, grad: Tensor) -> Any:
        return derivative.call(grad, *ctx.saved_tensors)

    # On fake tensors torch computes no more of the reference than its result's shape, strides and dtype.
    return Operator(
        name,
        reference,
        reference,
        save=save,
        backward=backward,
        batch=elementwise_batch,
        training=training,
        sharding=pointwise(),
    )


def wide(x: Tensor) -> Tensor:
    """``x`` in the dtype that kernels compute in: float32 for the half types."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def sum_of_rows(x: Tensor, dims: int = 1) -> Tensor:
    """Over all but the last ``dims`` dimensions: a new tensor also where there are no others."""
    x = x.unsqueeze(0)
    return x.sum(tuple(range(x.dim() - dims))).contiguous()


def check_parameter(op: str, name: str, parameter: Tensor, shape: list[int], input: Tensor) -> None:
    """An affine parameter as the kernels take it: ``shape``, input's dtype or float32 beside a half type."""
    if list(parameter.shape) != shape:
        raise RuntimeError(f"[{op}] {name} must have shape {shape}, got {list(parameter.shape)}")
    half = input.dtype in (torch.float16, torch.bfloat16)
    if parameter.dtype != input.dtype and not (half and parameter.dtype == torch.float32):
        allowed = f"{input.dtype} or torch.float32" if half else f"{input.dtype}"
        raise RuntimeError(f"[{op}] {name} must have input's dtype {allowed}, got {parameter.dtype}")
