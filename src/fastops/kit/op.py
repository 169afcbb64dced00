"""kit.op: one call makes of kernels a PyTorch op, with its schema, fake, gradient, batching and autocast."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .. import _autocast
from .._autocast import lower_precision, single_precision
from .._derivative import Reach, backward_of
from .._operator import EVERY_DTYPE, Differentiable, elementwise_batch
from ..sharding import Rule, pointwise
from .content import content_hash, content_of
from .errors import KitError
from .reach import by_backward, by_reference
from .schema import Schema

Function = Callable[..., Any]

# Whether two tensors have one storage.
_is_alias_of: Callable[[Tensor, Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]

_CASTS = {"lower": lower_precision, "float32": single_precision}
_libraries: dict[str, torch.library.Library] = {}
# By name and content. The same content is the same op, if what it reads and may change is the same too.
_ops: dict[str, list[tuple[Op, list[Any]]]] = {}
_lock = threading.RLock()


class _Parts(NamedTuple):
    """What :func:`op` is given beside the schema."""

    cpu: Function | None
    cuda: Function | None
    reference: Function | None
    backward: Function | None
    fake: Function | None
    outputs: int | None
    vmap: Function | str | None
    autocast: str | None
    sharding: Rule | None


def op(
    schema: str,
    *,
    cpu: Function | None = None,
    cuda: Function | None = None,
    reference: Function | None = None,
    backward: Function | None = None,
    fake: Function | None = None,
    outputs: int | None = None,
    vmap: Function | str | None = None,
    autocast: str | None = None,
    sharding: Rule | None = None,
) -> Op:
    """Makes an op that autograd, ``torch.func``, ``torch.compile`` and autocast understand.

    The first argument of ``schema`` is a Tensor, lists of tensors are not taken, and no argument may be overwritten.
    All functions below get the arguments by position, in the schema's order.

    Args:
        schema: as torch's, ``"my::scale(Tensor x, float a=2.0) -> Tensor"``. torch sees the name with a hash of all of
            this behind it: a changed op is another op, for which torch.compile has no old graph in its cache.
        cpu, cuda: return new outputs for tensors on that device. They run below autograd and must launch on the current
            stream of that device, as ``kit.cuda_kernel`` does.
        reference: the same function in torch operations. It serves devices without a kernel, batches, and the
            derivatives where ``backward`` is not given.
        backward: returns a gradient or None for each tensor argument. The names of its parameters say what is kept for
            it: arguments and outputs as the schema names them (``out``, if there is one without a name), ``grad``, of
            several outputs ``grad_<output>``, and ``needs``, which of the gradients are wanted. It is differentiated in
            its turn: write it in torch operations, or as an op where it launches kernels. It need not be the derivative
            of the reference: it is what counts, and forward mode takes its transpose.
        fake: returns empty outputs of the right shape, strides and dtype. Default: the reference; without one, a single
            output like the first tensor.
        outputs: how many outputs a caller gets; those after them are for the backward alone. Default: all.
        vmap: ``"elementwise"``, if all tensors have one shape and elements do not meet; or a function as
            :func:`torch.library.register_vmap` takes it. Default: ``torch.vmap`` of the reference; without one, a loop.
        autocast: ``"lower"``: under autocast floating-point tensors come in autocast's dtype; ``"float32"``: in
            float32. Default: as they are.
        sharding: a rule of :mod:`fastops.sharding`, such as ``rows(lambda call: 1, whole=("weight",))``: along which
            dimensions DTensors may be split. Default: with ``vmap="elementwise"`` all; else torch refuses DTensors.

    Returns:
        The op, a function of the schema's arguments, by position or name.

    Raises:
        KitError: a schema or an option that cannot be served; later, a derivative of an op that has none.
    """
    parts = _Parts(cpu, cuda, reference, backward, fake, outputs, vmap, autocast, sharding)
    parsed = Schema(schema)
    _check(parsed, parts)
    content, mutable = content_of(schema, *parts)
    with _lock:
        alike = _ops.setdefault(f"{parsed.namespace}::{parsed.name}_{content}", [])
        for known, held in alike:
            same = len(held) == len(mutable) and all(a is b for a, b in zip(held, mutable, strict=True))
            if same and content_hash(schema, *known._parts) == content:  # a variable of its may have another value now
                return known
        registered = f"{parsed.name}_{content[:12]}" + (f"_{len(alike)}" if alike else "")
        made = Op(parsed, parts, registered, content)
        alike.append((made, mutable))
        return made


class Op:
    """What :func:`op` returns: call it with tensors. ``raw`` is what torch's dispatcher sees, without a gradient."""

    def __init__(self, schema: Schema, parts: _Parts, registered: str, content: str) -> None:
        self.name = self.__name__ = schema.name
        self.schema = schema
        self.content_hash = content
        self._parts = parts
        self._outputs = parts.outputs or len(schema.outputs)
        self._whole = self._outputs == len(schema.outputs)
        given = parts.reference is not None
        save, backward = (None, None) if given else (_save_nothing, _no_derivative(schema.name))
        if parts.backward:
            save, backward = _gradient(schema, self._outputs, parts.backward, parts.reference)
        self.raw = _register(schema, registered, parts)  # last of what may fail: it cannot be undone
        # The statistics count as outputs, so that a second derivative through them is seen.
        self._call = Differentiable(
            schema.name,
            self.raw,
            parts.reference or _without_reference(schema.name),
            save=save,
            backward=backward,
            outputs=len(schema.outputs),
            reach=_reach(schema, self._outputs, save, backward, parts.reference),
            batch=elementwise_batch if parts.vmap == "elementwise" else None,
            vmap=self._one_by_one if not (parts.vmap or given) else parts.vmap if callable(parts.vmap) else None,
            dtypes=EVERY_DTYPE,
            overrides=parts.backward is not None,
            sharding=parts.sharding or (pointwise() if parts.vmap == "elementwise" else None),
        ).call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs or len(args) != len(self.schema.arguments):
            args = self.schema.bind(args, kwargs)
        if has_torch_function_variadic(*args):
            return handle_torch_function(self, args, *args)
        if self.schema.lengths:
            args = self.schema.with_lists(args)
        if self.schema.numbers:
            args = self.schema.plain(args)
        if self._parts.autocast:
            args = self._cast(args)
        result = self._call(*args)
        return result if self._whole else result[0] if self._outputs == 1 else result[: self._outputs]

    def __reduce__(self) -> Any:
        return functools.partial(op, self.schema.text, **self._parts._asdict()), ()

    def __repr__(self) -> str:
        return f"<kit.op {self.raw}>"

    @property
    def unsupported(self) -> dict[str, str]:
        """What it was given no function for, as ``kit.check`` calls it."""
        parts = self._parts
        if parts.reference:
            return {}
        missing = {"forward mode": "needs reference="}
        if not parts.backward:
            missing["gradient"] = "needs backward= or reference="
        return missing | {
            key.upper(): f"needs {key}= or reference=" for key in ("cpu", "cuda") if not getattr(parts, key)
        }

    @property
    def reference(self) -> Function | None:
        """What it is to compute, of all arguments by position."""
        return self._parts.reference

    def dispatched(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """What torch's dispatcher is called with, for ``torch.library.opcheck``."""
        return self.raw, self.schema.with_lists(self.schema.bind(args, kwargs))

    def prepare(self, *args: Any, device: torch.device | str | int | None = None, **kwargs: Any) -> None:
        """Compile a kernel of Numba's for a CUDA device, the current one by default, ahead of a call like this.

        The arguments' dtypes, dimensions and strides count; they may lie on any device, and nothing is launched.
        """
        prepare = getattr(self._parts.cuda, "prepare_call", None)
        if prepare is None:
            raise KitError(
                f"[{self.name}] prepare is for a kernel of Numba's; a kernel that cuda= calls has one of its own"
            )
        prepare(self.schema.bind(args, kwargs), device)

    def explain(self, *args: Any, **kwargs: Any) -> str:
        """Which code a call with these arguments runs."""
        first = self.schema.bind(args, kwargs)[0]
        if not isinstance(first, Tensor):
            raise TypeError(f"[{self.name}] expected a Tensor first, got {type(first).__name__}")
        device = first.device.type
        kernel = {"cpu": self._parts.cpu, "cuda": self._parts.cuda}.get(device)
        if kernel is None:
            runs = "the reference" if self._parts.reference else "nothing: there is neither a kernel nor a reference"
        else:
            runs = f"{device}={getattr(kernel, '__qualname__', repr(kernel))}"
        return f"{self.raw} on {device}: {runs}"

    def _cast(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        if not (isinstance(args[0], Tensor) and _autocast.enabled(args[0].device.type)):
            return args
        places, result = self.schema.tensors, list(args)
        cast = _CASTS[self._parts.autocast or "lower"]
        for k, x in zip(places, cast(*(args[k] for k in places)), strict=True):
            result[k] = x
        return tuple(result)

    def _one_by_one(self, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        if not info.batch_size:
            raise KitError(f"[{self.name}] vmap over a batch of 0 needs reference= or vmap=")
        results = [
            self._call(*(x if d is None else x.select(d, k) for x, d in zip(inputs, in_dims, strict=True)))
            for k in range(info.batch_size)
        ]
        if len(self.schema.outputs) == 1:
            return torch.stack(results), 0
        return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0,) * len(self.schema.outputs)


def _check(schema: Schema, parts: _Parts) -> None:
    name, count = schema.name, len(schema.outputs)
    if parts.cpu is None and parts.cuda is None and parts.reference is None:
        raise KitError(f"[{name}] expected cpu=, cuda= or reference=, got none of them")
    for what in ("cpu", "cuda", "reference", "backward", "fake", "sharding"):
        function = getattr(parts, what)
        if function is not None and not callable(function):
            raise KitError(f"[{name}] {what} must be a function, got {type(function).__name__}")
    if parts.outputs is not None and not (isinstance(parts.outputs, int) and 1 <= parts.outputs <= count):
        raise KitError(f"[{name}] outputs must be 1 to {count}, got {parts.outputs!r}")
    if parts.fake is None and parts.reference is None and count > 1:
        raise KitError(f"[{name}] several outputs without a reference= need a fake=")
    if parts.vmap not in (None, "elementwise") and not callable(parts.vmap):
        raise KitError(f"[{name}] vmap must be 'elementwise' or a function, got {parts.vmap!r}")
    if parts.autocast not in (None, *_CASTS):
        raise KitError(f"[{name}] autocast must be one of {', '.join(_CASTS)}, got {parts.autocast!r}")


def _register(schema: Schema, registered: str, parts: _Parts) -> torch._ops.OpOverload:
    library = _libraries.get(schema.namespace)
    if library is None:
        library = _libraries[schema.namespace] = torch.library.Library(schema.namespace, "FRAGMENT")
    library.define(schema.named(registered), tags=(torch.Tag.pt2_compliant_tag,))
    if parts.cpu:
        library.impl(registered, _checked(schema, "cpu=", parts.cpu), "CPU")
    if parts.cuda:
        library.impl(registered, _on_the_first_tensors_device(_checked(schema, "cuda=", parts.cuda)), "CUDA")
    reference = _checked(schema, "reference=", parts.reference) if parts.reference else None
    library.impl(registered, reference or _no_kernel(schema.name), "CompositeExplicitAutograd")
    fake = _checked(schema, "fake=", parts.fake) if parts.fake else reference
    fake = fake or (lambda first, *rest: torch.empty_like(first))
    torch.library.register_fake(f"{schema.namespace}::{registered}", fake, lib=library)
    return getattr(getattr(torch.ops, schema.namespace), registered).default


def _checked(schema: Schema, what: str, function: Function) -> Function:
    """``function``, and what torch would not notice: a result that is none, or none of its own.

    Autograd and torch.compile take each output for new memory. The question costs 0.2 us for a pair of tensors.
    """
    count, places = len(schema.outputs), schema.tensors

    def checked(*inputs: Any) -> Any:
        result = function(*inputs)
        if count == 1 and isinstance(result, Tensor):
            outputs: Any = (result,)
        else:
            outputs = result
            several = isinstance(result, (tuple, list)) and all(isinstance(y, Tensor) for y in result)
            if count == 1 or not several or len(result) != count:
                expected = "a Tensor" if count == 1 else f"{count} Tensors"
                got = f"{len(result)} of them" if several else type(result).__name__
                raise KitError(f"[{schema.name}] {what} must return {expected}, got {got}")
        known = [(schema.arguments[k], inputs[k]) for k in places if inputs[k] is not None]
        for name, y in zip(schema.outputs, outputs, strict=True):
            for other, x in known:
                if _is_alias_of(y, x):
                    raise KitError(
                        f"[{schema.name}] {what} must return new tensors, got {name} in the memory of {other}: "
                        "return a clone()"
                    )
            if count > 1:
                known.append((name, y))
        return result

    return checked


def _on_the_first_tensors_device(kernel: Function) -> Function:
    def guarded(*inputs: Any) -> Any:
        index = inputs[0].device.index
        if index == torch.cuda.current_device():
            return kernel(*inputs)
        with torch.cuda.device(index):
            return kernel(*inputs)

    return guarded


def _no_kernel(name: str) -> Function:
    def refuse(*inputs: Any) -> NoReturn:
        raise KitError(f"[{name}] has no kernel for {inputs[0].device.type}: give kit.op one, or reference=")

    return refuse


def _without_reference(name: str) -> Function:
    def refuse(*inputs: Any) -> NoReturn:
        raise KitError(f"[{name}] forward mode, and torch.func inside torch.compile, need kit.op(..., reference=...)")

    return refuse


def _reach(
    schema: Schema, public: int, save: Function | None, backward: Function | None, reference: Function | None
) -> Reach | None:
    if len(schema.outputs) == 1:
        return None
    if save and backward:
        return by_backward(save, backward, public)
    return by_reference(reference) if reference else None


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None: ...


def _no_derivative(name: str) -> Function:
    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        raise KitError(f"[{name}] has no derivative: give kit.op backward= or reference=")

    return refuse


def _gradient(schema: Schema, public: int, function: Function, reference: Function | None) -> tuple[Function, Function]:
    """``save`` and ``backward`` of a :class:`Differentiable`, from a function whose parameters name what it reads."""
    arguments, hidden = schema.arguments, schema.outputs[public:]
    grads = ("grad",) if public == 1 else tuple(f"grad_{name}" for name in schema.outputs[:public])
    values = (*arguments, *schema.outputs)
    reads = _parameters(function)
    if unknown := [name for name in reads if name not in (*grads, *values, "needs")]:
        expected = ", ".join((*grads, *values, "needs"))
        raise KitError(f"[{schema.name}] backward may read {expected}, got a parameter {unknown[0]}")
    several = len(schema.outputs) > 1
    read = [k for k, name in enumerate(values) if name in reads]
    # A second derivative through the hidden outputs needs one of them, which the reference has.
    all_read = sorted({*read, *range(len(arguments))})
    of_reference = backward_of(reference) if reference else None

    def save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        given = (*inputs, *outputs) if several else (*inputs, outputs)
        statistics = of_reference and any(x.is_floating_point() for x in given[len(arguments) + public :])
        kept = all_read if statistics else read
        ctx.tensors = [k for k in kept if isinstance(given[k], Tensor)]
        ctx.others = [(k, given[k]) for k in kept if not isinstance(given[k], Tensor)]
        ctx.save_for_backward(*[given[k] for k in ctx.tensors])
        if several and not torch.compiler.is_dynamo_compiling():  # Dynamo does not know it, and has zeros come in
            ctx.set_materialize_grads(False)
            ctx.like = [(x.shape, x.dtype, x.device) for x in given[len(arguments) :]]

    def backward(ctx: Any, *incoming: Any) -> Any:
        known = dict(zip(ctx.tensors, ctx.saved_tensors, strict=True)) | dict(ctx.others)
        named = {values[k]: x for k, x in known.items()}
        named["needs"] = tuple([ctx.needs_input_grad[k] for k in schema.tensors])
        through_hidden = False
        if several and not torch.compiler.is_dynamo_compiling():
            through_hidden = any(g is not None for g in incoming[public:])
            given = next((g for g in incoming if g is not None), None)
            pairs = zip(incoming, ctx.like, strict=True)
            incoming = tuple(_zeros(given, *like) if g is None else g for g, like in pairs)
        named |= zip(grads, incoming, strict=False)
        found = function(*[named[name] for name in reads])
        found = found if isinstance(found, (tuple, list)) else (found,)
        if len(found) != len(schema.tensors):
            expected = ", ".join(arguments[k] for k in schema.tensors)
            raise KitError(f"[{schema.name}] backward must return gradients of {expected}, got {len(found)} values")
        # No list is written to: Dynamo of torch 2.11 loses that.
        by_input = dict(zip(schema.tensors, found, strict=True))
        result = [by_input.get(k) if ctx.needs_input_grad[k] else None for k in range(len(arguments))]
        if through_hidden:
            if of_reference is None:
                raise KitError(
                    f"[{schema.name}] a second derivative through {', '.join(hidden)}, which backward= takes as given, "
                    "needs reference="
                )
            places = [k for k in ctx.tensors if k < len(arguments)]
            more = SimpleNamespace(
                tensors_at=places,
                saved_tensors=[known[k] for k in places],
                inputs=[known[k] for k in range(len(arguments))],
                needs_input_grad=ctx.needs_input_grad,
            )
            of_hidden = (*map(torch.zeros_like, incoming[:public]), *incoming[public:])
            for k, gradient in enumerate(of_reference(more, *of_hidden)):
                result[k] = gradient if result[k] is None else result[k] if gradient is None else result[k] + gradient
        return tuple(result)

    return save, backward


def _zeros(given: Tensor | None, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of the kind that another gradient is, such as DTensors."""
    new = torch.zeros if given is None else given.new_zeros
    return new(shape, dtype=dtype, device=device)


def _parameters(function: Function) -> tuple[str, ...]:
    if isinstance(function, Op):
        return function.schema.arguments
    return tuple(inspect.signature(function).parameters)
