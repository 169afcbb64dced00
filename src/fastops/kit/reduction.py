"""kit.reduction: a differentiable reduction over dimensions from three expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function_variadic

from . import expression, source
from .elementwise import (
    Definition,
    check_gradients,
    check_tensors,
    free_names,
    of_one_dtype,
    scalar_values,
    wrong_count,
)
from .errors import ExpressionError
from .expression import Node
from .number import integer, named, real, truth
from .program import Kernels, explained, prepared
from .reduction_gradient import Gradient, SumApart, differentiable_reduction
from .reduction_program import known, normalised, reduction_program

_compiling = torch.compiler.is_dynamo_compiling

_MOST_TENSORS = 8  # kMaxInputs of cpp/kit/reduction.cpp


_MOST_DIMS = 64  # torch's own limit


def _dims(op: str, dim: Any) -> list[int]:
    dims = [] if dim is None else [*dim] if isinstance(dim, (tuple, list)) else [dim]
    try:
        dims = [integer(d) for d in dims]
    except TypeError:
        raise TypeError(f"[{op}] dim must be an integer or several, got {dim!r}") from None
    return [_constant(d) for d in dims] if _compiling() else dims


def _constant(d: int) -> int:
    """``d`` as a number of the graph's, of which there is one for each: at a second value Dynamo makes it a symbol."""
    for k in range(_MOST_DIMS):
        if d == k:
            return k
        if d == -k - 1:
            return -k - 1
    return d


class Reduce:
    """What :func:`reduction` returns: call it with tensors, ``dim=``, ``keepdim=``, and scalars by keyword."""

    def __init__(
        self,
        signature: expression.Signature,
        nodes: tuple[Node, Node, Node],
        given: Sequence[Node] | None,
        identity: float | None,
        definition: Definition,
    ) -> None:
        self._definition = definition
        self.name = self.__name__ = signature.name
        self.tensors, self.scalars = signature.tensors, dict(signature.scalars)
        self._defaults = tuple(self.scalars.values())
        self._program = program = reduction_program(self.name, signature, nodes, identity)
        self.content_hash = program.op
        taken = (*self.tensors, *self.scalars)
        (grad,), (out,) = free_names("grad", 1, taken), free_names("out", 1, taken)
        self._gradient = self._apart = None
        if given is not None:
            self._gradient = Gradient(program, given, grad, out)
        elif program.kind == "a + b":
            self._apart = SumApart(signature, nodes, identity, grad, out)
        self._call = differentiable_reduction(program, self._gradient, overrides=given is not None).call

    def __call__(
        self, *tensors: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, **scalars: float
    ) -> Tensor:
        if has_torch_function_variadic(*tensors):
            return handle_torch_function(self, tensors, *tensors, dim=dim, keepdim=keepdim, **scalars)
        if len(tensors) != len(self.tensors):
            raise wrong_count(self.name, self.tensors, tensors, self.scalars, scalars)
        values = scalar_values(self.name, self.scalars, scalars) if scalars else self._defaults
        dims = [dim] if type(dim) is int and not _compiling() else _dims(self.name, dim)
        if keepdim is not False and keepdim is not True:
            keepdim = named(self.name, "keepdim", truth, keepdim)
        try:
            if self._apart and _takes_the_sum_apart(tensors):
                return self._apart(tensors, values, dims, keepdim)
            return self._call(*tensors, *values, dims, keepdim, False)
        except (AttributeError, RuntimeError, TypeError) as error:
            check_tensors(self.name, self.tensors, tensors)
            try:
                shape = torch.broadcast_shapes(*(t.shape for t in tensors))
            except RuntimeError:
                raise error from None
            # What is raised below torch's dispatcher comes as a RuntimeError, with a traceback in its text.
            self._program.check_empty(shape, normalised(self.name, dims, len(shape)))
            raise

    def __reduce__(self) -> Any:
        return self._definition

    def __repr__(self) -> str:
        return f"<kit.reduction {self.name}({', '.join(self.tensors)})>"

    def prepare(self, *dtypes: torch.dtype, device: torch.device | str | int = "cuda", backward: bool = True) -> None:
        """Compile ahead of the first call, for tensors of one of ``dtypes``; by default of float32."""

        def kernels(dtype: torch.dtype) -> Iterator[Kernels]:
            yield Kernels(self._program, [dtype] * (1 + len(self.tensors)), source.REDUCTIONS)
            if backward and self._gradient:
                yield of_one_dtype(self._gradient.program, dtype)
            if backward and self._apart:
                yield from self._apart.kernels(dtype)

        prepared(self.name, dtypes or (torch.float32,), device, kernels)

    def explain(self, *tensors: Tensor, **options: Any) -> str:
        """Which code a call with these tensors runs."""
        with torch.no_grad():
            self(*tensors, **options)
        return explained(self._program, tensors)

    @property
    def unsupported(self) -> dict[str, str]:
        """What it was given no value for, as ``kit.check`` calls it."""
        return {} if self._program.identity is not None else {"empty": "needs identity="}

    @property
    def reference(self) -> Callable[..., Any]:
        """The same in torch's functions, of all arguments by position."""
        return self._program.reference

    def dispatched(
        self, *tensors: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, **scalars: float
    ) -> tuple[Any, tuple[Any, ...]]:
        """What torch's dispatcher is called with, for ``torch.library.opcheck``."""
        values = scalar_values(self.name, self.scalars, scalars)
        return self._program.raw, (*tensors, *values, _dims(self.name, dim), keepdim, False)


def _takes_the_sum_apart(tensors: Sequence[Tensor]) -> bool:
    if any(t.is_complex() for t in tensors):  # theirs come from the plain composition
        return False
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return True
    return _compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def reduction(
    signature: str,
    map: str | None = None,
    reduce: str = "a + b",
    post: str = "a",
    *,
    backward: str | None = None,
    identity: float | None = None,
) -> Reduce:
    """A differentiable reduction over ``dim=``: ``post`` of what ``reduce`` makes of ``map`` of each element.

    .. code-block:: python

        norm2 = kit.reduction("norm2(x)", map="x * x", reduce="a + b", post="sqrt(a)", backward="grad * x / out")
        mean = kit.reduction("mean(x)", post="a / n")
        y = norm2(x, dim=(0, 2), keepdim=True)

    Tensors broadcast; dtypes, strides and what runs are as in :func:`elementwise`. Half types are summed in float32.
    The order is fixed: results are the same each time, and a row's does not depend on how many there are.

    Args:
        signature: name, tensors and, behind ``*``, scalars with defaults.
        map: of the tensors and scalars. Default: the tensor.
        reduce: of ``a`` and ``b``, in whatever order suits: it must be associative and commutative.
        post: of the reduced ``a``, the number ``n`` of elements, and the scalars.
        backward: an expression for each tensor's gradient, of the tensors, the scalars, ``grad``, ``out`` and ``n``.
            Default: derived. As in :func:`elementwise`, what is given is what counts.
        identity: what an empty reduction starts from. Default: 0 of sums, 1 of products; of others an empty one raises.

    Raises:
        ExpressionError: with the place in the text.
    """
    parsed = expression.parse_signature(signature)
    names = (*parsed.tensors, *parsed.scalars)
    for name in ("dim", "keepdim", "n", "a", "b"):
        if name in parsed.scalars or (name in ("dim", "keepdim", "n") and name in parsed.tensors):
            raise ExpressionError(f"[{parsed.name}] {name} has a meaning in reductions: choose another name")
    if len(parsed.tensors) > _MOST_TENSORS:
        raise ExpressionError(f"[{parsed.name}] expected at most {_MOST_TENSORS} tensors, got {len(parsed.tensors)}")
    if identity is not None:
        identity = named(parsed.name, "identity", real, identity)
    if map is None:
        if len(parsed.tensors) > 1:
            raise ExpressionError(f"[{parsed.name}] map= is needed for several tensors: {', '.join(parsed.tensors)}")
        map = parsed.tensors[0]
    nodes = (
        _one(map, names, f"{parsed.name} map"),
        _one(reduce, ("a", "b"), f"{parsed.name} reduce"),
        _one(post, ("a", "n", *parsed.scalars), f"{parsed.name} post"),
    )
    given = None
    if backward is not None:
        grads = (*free_names("grad", 1, names), *free_names("out", 1, names))
        given = expression.parse(backward, (*names, *grads, "n"), where=f"{parsed.name} backward")
        check_gradients(parsed, given)
    again = functools.partial(reduction, map=map, reduce=reduce, post=post, backward=backward, identity=identity)
    if identity is None:
        identity = known(nodes[1])[1]
    return Reduce(parsed, nodes, given, identity, (again, (signature,)))


def _one(text: str, names: Sequence[str], where: str) -> Node:
    nodes = expression.parse(text, names, where=where)
    if len(nodes) != 1:
        raise ExpressionError(f"[{where}] expected one expression, got {len(nodes)}")
    return nodes[0]
