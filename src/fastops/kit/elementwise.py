"""kit.elementwise: a differentiable elementwise op from an expression."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._derivative import Reach, backward_of, reach_of, save_inputs
from .._operator import Differentiable
from ..sharding import pointwise as pointwise_sharding
from . import expression
from .errors import ExpressionError
from .expression import Node
from .layouts import special
from .number import named, real
from .pointwise import Pointwise, pointwise
from .program import Kernels, explained, prepared
from .source import POINTWISE

_compiling = torch.compiler.is_dynamo_compiling


# What pickle and copy make an op of again: a call, or for a decorated function the name that it has in its module.
Definition = tuple[Callable[..., Any], tuple[Any, ...]] | str


class _Gradient(NamedTuple):
    """The gradients of some of a program's tensors, as a function of the outputs' gradients and what is kept."""

    call: Callable[..., Any]
    program: Pointwise
    kept: tuple[int, ...]  # of the inputs and, behind them, the outputs
    places: tuple[int | None, ...]  # of each input's gradient among the results


def free_names(base: str, count: int, taken: Sequence[str]) -> tuple[str, ...]:
    """``grad``, or ``grad0, grad1`` for several, with underscores behind them as long as one is taken."""
    names = (base,) if count == 1 else tuple(f"{base}{k}" for k in range(count))
    return names if not set(names) & set(taken) else free_names(base + "_", count, taken)


def _gradient(
    program: Pointwise, given: Sequence[Node] | None, needs: Sequence[bool], came: Sequence[bool]
) -> _Gradient:
    taken = program.tensors + program.scalars
    grads = free_names("grad", program.outputs, taken)
    outs = free_names("out", program.outputs, taken)
    wanted = [k for k, need in enumerate(needs) if need]
    if given is None:
        nodes = [expression.chain(program.nodes, grads, program.tensors[k], came) for k in wanted]
    else:
        absent = [grad for grad, present in zip(grads, came, strict=True) if not present]
        nodes = [expression.without(given[k], absent) if absent else given[k] for k in wanted]
    used = frozenset().union(*map(expression.names, nodes))
    values = (*taken, *outs)
    kept = tuple(k for k, name in enumerate(values) if name in used and name not in program.scalars)
    tensors = [*itertools.compress(grads, came), *(values[k] for k in kept)]
    backward = pointwise(f"{program.name}_backward", tensors, program.scalars, nodes)
    call = differentiable(backward, Gradients(backward, ahead=False)).call
    return _Gradient(call, backward, kept, tuple(wanted.index(k) if need else None for k, need in enumerate(needs)))


class Gradients:
    """A program's gradients by any of its tensors, each made when it is first asked for.

    ``ahead``: that by all of them is made now; ``torch.compile`` takes it, and can make none.
    """

    def __init__(self, program: Pointwise, given: Sequence[Node] | None = None, *, ahead: bool = True) -> None:
        self._program, self.given, self.ahead = program, given, ahead
        tensors = range(len(program.tensors))
        scalars = (False,) * len(program.scalars)
        self._all = (*(True for _ in tensors), *scalars)
        self._each = [(*(k == j for k in tensors), *scalars) for j in tensors]
        self.every = (True,) * program.outputs
        self._made: dict[tuple[tuple[bool, ...], tuple[bool, ...]], _Gradient] = {}
        if ahead:
            self.of(self._all, self.every)

    def of(self, needs: tuple[bool, ...], came: tuple[bool, ...]) -> _Gradient:
        """The gradients of the inputs that ``needs`` names, where those of the outputs that ``came`` names are given.

        An output whose gradient did not come contributes nothing: its derivative may be infinite.
        """
        if (needs, came) not in self._made:
            self._made[needs, came] = _gradient(self._program, self.given, needs, came)
        return self._made[needs, came]

    def programs(self) -> list[Pointwise]:
        """Those of the gradients by all tensors, and by each alone; of all outputs, and of each alone."""
        outputs = range(self._program.outputs)
        apart = [tuple(k == j for k in outputs) for j in outputs]
        return [self.of(needs, came).program for needs in {self._all, *self._each} for came in {self.every, *apart}]

    def needed(self, ctx: Any) -> tuple[bool, ...]:
        return self._all if _compiling() else ctx.needs_input_grad


def differentiable(program: Pointwise, gradients: Gradients) -> Differentiable:
    count = len(program.tensors)

    def save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        ctx.complex = gradients.given is None and results[0].is_complex()
        ctx.zeros_come = program.outputs == 1 or _compiling()  # Dynamo knows no other way
        if not ctx.zeros_come:
            ctx.set_materialize_grads(False)
        if ctx.complex:
            save_inputs(ctx, inputs, outputs)
        elif True in ctx.needs_input_grad:  # else a constant of torch.func.grad's
            values = (*inputs, *results)
            ctx.scalars = inputs[count:]
            ctx.save_for_backward(*[values[k] for k in gradients.of(gradients.needed(ctx), gradients.every).kept])

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        came = gradients.every if ctx.zeros_come else tuple([grad is not None for grad in grads])
        if True not in came:
            return (None,) * len(ctx.needs_input_grad)
        if ctx.complex:
            return _of_complex(program, came)(ctx, *itertools.compress(grads, came))
        needs, saved = gradients.needed(ctx), ctx.saved_tensors
        gradient = gradients.of(needs, gradients.every)
        if False in came:
            at = dict(zip(gradient.kept, saved, strict=True))
            gradient = gradients.of(needs, came)
            grads, saved = tuple(itertools.compress(grads, came)), [at[k] for k in gradient.kept]
        found = gradient.call(*grads, *saved, *ctx.scalars)
        each = found if isinstance(found, tuple) else (found,)
        # Of an input that was broadcast or promoted autograd sums and rounds them, as it does those of torch's own ops.
        # No list is written to: Dynamo of torch 2.11 loses that, and the gradients with it.
        return tuple([None if k is None else each[k] for k in gradient.places])

    op = Differentiable(
        program.name,
        program.raw,
        program.reference,
        save=save,
        backward=backward,
        outputs=program.outputs,
        reach=_reach(program, gradients.given),
        batch=functools.partial(aligned, count),
        inline=True,
        overrides=gradients.given is not None,
        sharding=pointwise_sharding(),
    )
    if program.outputs > 1 and gradients.given is None and gradients.ahead:
        op.call = _apart_if_compiled(program, op.call)
    return op


def _of_complex(program: Pointwise, came: Sequence[bool]) -> Callable[..., Any]:
    """The plain composition's backward: the derivatives of expressions are those of real numbers."""
    if False not in came:
        return backward_of(program.reference)
    return backward_of(lambda *inputs: tuple(itertools.compress(program.reference(*inputs), came)))


def _apart_if_compiled(program: Pointwise, whole: Callable[..., Any]) -> Callable[..., Any]:
    """Each output by an op of its own where Dynamo traces it, so that there is no backward of what is not used."""
    parts = [pointwise(program.name, program.tensors, program.scalars, [node]) for node in program.nodes]
    calls = tuple(differentiable(part, Gradients(part)).call for part in parts)

    def call(*inputs: Any) -> Any:
        return tuple([part(*inputs) for part in calls]) if _compiling() else whole(*inputs)

    return call


def _reach(program: Pointwise, given: Sequence[Node] | None) -> Reach:
    """An output is a function of the tensors that it names, or in whose given gradients its own is named."""
    if given is None:
        named = map(expression.names, program.nodes)
        return reach_of([{k for k, x in enumerate(program.tensors) if x in names} for names in named])
    grads = free_names("grad", program.outputs, program.tensors + program.scalars)
    return reach_of([{k for k, node in enumerate(given) if grad in expression.names(node)} for grad in grads])


def aligned(count: int, size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
    """The ``batch`` rule of ops whose first ``count`` inputs broadcast: the batch first, then as before."""
    tensors = [x if d is None else x.movedim(d, 0) for x, d in zip(inputs[:count], in_dims, strict=False)]
    rank = max(x.dim() - (d is not None) for x, d in zip(tensors, in_dims, strict=False))
    for k, d in enumerate(in_dims[:count]):
        if d is not None:
            x = tensors[k]
            tensors[k] = x.reshape(size, *(1,) * (rank + 1 - x.dim()), *x.shape[1:])
    return *tensors, *inputs[count:]


def of_one_dtype(program: Pointwise, dtype: torch.dtype) -> Kernels:
    return Kernels(program, [dtype] * (1 + len(program.tensors)), POINTWISE)


class Elementwise:
    """What :func:`elementwise` returns: call it with tensors, and scalars by keyword."""

    def __init__(
        self,
        signature: expression.Signature,
        nodes: Sequence[Node],
        given: Sequence[Node] | None,
        definition: Definition,
    ) -> None:
        self._definition = definition
        self.name = self.__name__ = signature.name
        self.tensors, self.scalars = signature.tensors, dict(signature.scalars)
        self._program = pointwise(signature.name, self.tensors, tuple(self.scalars), nodes)
        self._gradients = Gradients(self._program, given)
        self._call = differentiable(self._program, self._gradients).call
        self._defaults = tuple(self.scalars.values())
        self.content_hash = self._program.op
        self.__signature__ = inspect.Signature(
            [inspect.Parameter(t, inspect.Parameter.POSITIONAL_ONLY, annotation=Tensor) for t in self.tensors]
            + [
                inspect.Parameter(s, inspect.Parameter.KEYWORD_ONLY, default=d, annotation=float)
                for s, d in self.scalars.items()
            ]
        )

    def __call__(self, *tensors: Tensor, **scalars: float) -> Any:
        if has_torch_function_variadic(*tensors):
            return handle_torch_function(self, tensors, *tensors, **scalars)
        if len(tensors) != len(self.tensors):
            raise wrong_count(self.name, self.tensors, tensors, self.scalars, scalars)
        values = scalar_values(self.name, self.scalars, scalars) if scalars else self._defaults
        try:
            return self._call(*tensors, *values)
        except (AttributeError, RuntimeError, TypeError):
            check_tensors(self.name, self.tensors, tensors)
            raise

    def __reduce__(self) -> Any:
        return self._definition

    def __repr__(self) -> str:
        return f"<kit.elementwise {self.name}{self.__signature__}>"

    def prepare(self, *dtypes: torch.dtype, device: torch.device | str | int = "cuda", backward: bool = True) -> None:
        """Compile ahead of the first call, for tensors of one of ``dtypes``; by default of float32.

        With ``backward`` the gradients by all tensors, and by each alone. A call under CUDA-graph capture, or one that
        must be fast the first time, wants this before.
        """

        def kernels(dtype: torch.dtype) -> Iterator[Kernels]:
            yield of_one_dtype(self._program, dtype)
            if backward:
                yield from (of_one_dtype(program, dtype) for program in self._gradients.programs())

        prepared(self.name, dtypes or (torch.float32,), device, kernels)

    def explain(self, *tensors: Tensor, **scalars: float) -> str:
        """Which code a call with these tensors runs."""
        with torch.no_grad():
            self(*tensors, **scalars)
        return explained(self._program, tensors)

    @property
    def reference(self) -> Callable[..., Any]:
        """The same in torch's functions, of all arguments by position."""
        return self._program.reference

    def dispatched(self, *tensors: Tensor, **scalars: float) -> tuple[Any, tuple[Any, ...]]:
        """What torch's dispatcher is called with, for ``torch.library.opcheck``."""
        return self._program.raw, (*tensors, *scalar_values(self.name, self.scalars, scalars))


def wrong_count(
    op: str, names: Sequence[str], given: Sequence[Any], scalars: Iterable[str] = (), keywords: Iterable[str] = ()
) -> TypeError:
    expected = f"{len(names)} tensor{'s' if len(names) > 1 else ''}, {', '.join(names)}"
    behind = next((x for x in given[len(names) :] if not isinstance(x, Tensor)), None)
    scalar = next(iter(scalars), None)
    hint = f"; scalars go by keyword, {scalar}={behind!r}" if scalar and isinstance(behind, (int, float)) else ""
    if set(keywords) & set(names):
        hint = "; tensors go by position"
    return TypeError(f"[{op}] expected {expected}, got {len(given)}{hint}")


def check_tensors(op: str, names: Sequence[str], tensors: Sequence[Any]) -> None:
    for name, x in zip(names, tensors, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(f"[{op}] {name} must be a Tensor, got {type(x).__name__}")
        if what := special(x):
            raise TypeError(f"[{op}] {name} must be dense, got {what}")


def scalar_values(op: str, defaults: dict[str, float], given: dict[str, float]) -> tuple[float, ...]:
    for name in given:
        if name not in defaults:
            expected = ", ".join(defaults) or "none"
            raise TypeError(f"[{op}] takes no scalar {name}; expected: {expected}")
    numbers = {name: named(op, name, _fitting, value) for name, value in given.items()}
    return tuple([numbers.get(name, default) for name, default in defaults.items()])


def _fitting(value: Any) -> Any:
    value = real(value)
    if type(value) is int and not _compiling() and value.bit_length() > sys.float_info.max_exp:
        raise TypeError(f"must fit float64, got an integer of {value.bit_length()} bits")
    return value


def elementwise(
    signature: str | Callable[..., Any] | None = None, body: str | None = None, *, backward: str | None = None
) -> Any:
    """A differentiable elementwise op from one expression.

    .. code-block:: python

        swish = kit.elementwise("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
        relu = kit.elementwise("relu(x)", "x > 0 ? x : 0", backward="x > 0 ? grad : 0")

        @kit.elementwise
        def huber(x, y, *, delta=1.0):
            d = abs(x - y)
            return 0.5 * d * d if d < delta else delta * (d - 0.5 * delta)

    Tensors broadcast, may have any strides, and are float16, bfloat16, float32 or float64. Other dtypes, devices other
    than CPU and CUDA, and machines without a compiler take the same expression in torch's functions, and so does
    ``torch.compile``, which fuses it.

    The result's dtype is the one that torch promotes all the tensors to; integers alone give the default dtype. The
    whole expression is computed in that dtype, or in float32 if it is float16 or bfloat16, and rounded once at the end.
    torch's own functions promote and round at each step instead: ``i + h`` of int64 and float16 rounds ``i`` to float16
    first, which makes 70000 infinite. Here ``i`` enters as float32, and only the result is rounded to float16.

    Args:
        signature: name, tensors and, behind ``*``, scalars with defaults; or a Python function, which is read.
        body: the expression; several outputs are separated by commas.
        backward: an expression for each tensor's gradient, of the tensors, the scalars, ``grad`` and ``out`` (``grad0,
            grad1, ...`` of several outputs). Default: derived. What is given need not be the derivative of ``body``
            (a straight-through estimator's is not): it is the one that counts in every mode. Second derivatives are
            its own, and forward mode takes its transpose; what cannot is refused (forward mode inside forward mode,
            ``torch.func`` inside ``torch.compile(fullgraph=True)``).

    Raises:
        ExpressionError: with the place in the text.
    """
    if body is None and (signature is None or callable(signature)):
        decorate = functools.partial(_from_function, backward=backward)
        return decorate if signature is None else decorate(signature)
    if body is None:
        raise ExpressionError(
            f"[kit] elementwise expected a signature and an expression, got {expression.brief(repr(signature))} alone"
        )
    parsed = expression.parse_signature(signature)
    nodes = expression.parse(body, (*parsed.tensors, *parsed.scalars), where=parsed.name)
    definition = (functools.partial(elementwise, backward=backward), (signature, body))
    return Elementwise(parsed, nodes, _given(parsed, len(nodes), backward), definition)


def _from_function(function: Callable[..., Any], backward: str | None) -> Elementwise:
    parsed, nodes = expression.from_function(function)
    op = Elementwise(parsed, nodes, _given(parsed, len(nodes), backward), function.__qualname__)
    op.__doc__, op.__module__ = function.__doc__, function.__module__
    return op


def _given(signature: expression.Signature, outputs: int, backward: str | None) -> tuple[Node, ...] | None:
    if backward is None:
        return None
    names = (*signature.tensors, *signature.scalars)
    known = (*names, *free_names("grad", outputs, names), *free_names("out", outputs, names))
    nodes = expression.parse(backward, known, where=f"{signature.name} backward")
    check_gradients(signature, nodes)
    return nodes


def check_gradients(signature: expression.Signature, nodes: Sequence[Node]) -> None:
    if len(nodes) != len(signature.tensors):
        raise ExpressionError(
            f"[{signature.name}] backward must have an expression for each of {', '.join(signature.tensors)}, "
            f"got {len(nodes)}"
        )
