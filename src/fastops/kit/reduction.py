"""kit.reduction: a differentiable reduction over dimensions from three expressions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._operator import Differentiable
from . import expression, source
from .elementwise import (
    Definition,
    Gradients,
    aligned,
    check_gradients,
    check_tensors,
    differentiable,
    free_names,
    like,
    of_one_dtype,
    scalar_values,
    wrong_count,
)
from .errors import ExpressionError
from .expression import Node
from .pointwise import pointwise
from .program import Kernels, Program, explained, prepared, promoted, unique

_compiling = torch.compiler.is_dynamo_compiling

_MOST_TENSORS = 8  # kMaxInputs of cpp/kit/reduction.cpp

# Reductions that torch has, by which the plain composition takes them; and what an empty one is.
_KNOWN = {"a + b": 0.0, "a * b": 1.0, "max(a, b)": None, "min(a, b)": None}
_KINDS = {expression.parse(text, ("a", "b"))[0]: (text, identity) for text, identity in _KNOWN.items()}


class Reduction(Program):
    """``post(reduce(map, ...))`` over some dimensions, as an op of (tensors, scalars, dim, keepdim, wide).

    ``wide``: the result of half types is float32. No dim stands for all.
    """

    def __init__(self, name: str, parts: Sequence[source.Function], identity: float | None, content: str) -> None:
        self.parts, self.identity = tuple(parts), identity
        mapped, reduced, post = parts
        self._map = expression.torch_function(mapped.nodes, (*mapped.tensors, *mapped.scalars))
        self._reduce = expression.torch_function(reduced.nodes, ("a", "b"))
        self._post = expression.torch_function(post.nodes, (*post.tensors, *post.scalars))
        self.kind = _KINDS.get(reduced.nodes[0], ("", None))[0]
        more = "int[] dim, bool keepdim, bool wide"
        super().__init__(name, mapped.tensors, mapped.scalars, 1, content, more)

    def reference(self, *inputs: Any) -> Tensor:
        count = len(self.tensors)
        tensors, scalars, (dim, keepdim, wide) = inputs[:count], inputs[count:-3], inputs[-3:]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dims = normalised(self.name, dim, len(shape))
        (values,) = self._map(*tensors, *scalars)
        values = values.expand(shape)
        n = _length(shape, dims)
        self.check_empty(shape, dims)
        total = self._total(values, dims, n).to(values.dtype)
        (out,) = self._post(total, torch.full((), n, dtype=values.dtype, device=values.device), *scalars)
        out = out.expand(total.shape)
        if not keepdim:
            kept = [size for d, size in enumerate(shape) if d not in dims]
            out = out.reshape(kept)
        dtype = promoted(tensors)
        return (out if wide and dtype in (torch.float16, torch.bfloat16) else out.to(dtype)).contiguous()

    def check_empty(self, shape: Sequence[int], dims: tuple[int, ...]) -> None:
        if self.identity is None and _length(shape, dims) == 0:
            raise RuntimeError(f"[{self.name}] an empty reduction needs identity=, got shape {list(shape)}")

    def _total(self, values: Tensor, dims: tuple[int, ...], n: int) -> Tensor:
        """With the reduced dimensions as 1."""
        if n == 1:
            return values.clone()  # not one of the inputs
        if n == 0:
            assert self.identity is not None
            return values.new_full([1 if d in dims else size for d, size in enumerate(values.shape)], self.identity)
        if self.kind == "a + b":
            return values.sum(dims, keepdim=True)
        if self.kind == "max(a, b)":
            return values.amax(dims, keepdim=True)
        if self.kind == "min(a, b)":
            return values.amin(dims, keepdim=True)
        last = tuple(range(-len(dims), 0))
        flat = values.movedim(dims, last).flatten(-len(dims))
        if self.kind == "a * b":
            total = flat.prod(-1)
        else:
            # The odd ones. To join them to the others by torch.cat crashes Inductor's backward in torch 2.13.
            tail: Tensor | None = None
            while flat.shape[-1] > 1:
                half = flat.shape[-1] // 2
                if flat.shape[-1] % 2:
                    odd = flat[..., -1:]
                    tail = odd if tail is None else self._reduce(tail, odd)[0]
                (flat,) = self._reduce(flat[..., :half], flat[..., half : 2 * half])
            if tail is not None:
                (flat,) = self._reduce(flat, tail)
            total = flat[..., 0]
        return total.reshape([1 if d in dims else size for d, size in enumerate(values.shape)])

    def fake(self, *inputs: Any) -> Tensor:
        tensors, (dim, keepdim, wide) = inputs[: len(self.tensors)], inputs[-3:]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dims = normalised(self.name, dim, len(shape))
        sizes = [1 if d in dims else size for d, size in enumerate(shape) if keepdim or d not in dims]
        dtype = promoted(tensors)
        halves = (torch.float16, torch.bfloat16)
        return tensors[0].new_empty(sizes, dtype=torch.float32 if wide and dtype in halves else dtype)

    def cpp(self, dtypes: Sequence[int]) -> str:
        return source.reduction_cpp(self.parts, dtypes)

    def cuda(self, dtypes: Sequence[int], variant: int) -> str:
        return source.reduction_cuda(self.parts, dtypes, variant)


def _dims(op: str, dim: Any) -> list[int]:
    dims = [] if dim is None else [*dim] if isinstance(dim, (tuple, list)) else [dim]
    for d in dims:
        if not isinstance(d, (int, torch.SymInt)):
            raise TypeError(f"[{op}] dim must be an integer or several, got {d!r}")
    return dims


def normalised(op: str, dim: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Ascending, from 0; all of them for none."""
    if not dim:
        return tuple(range(ndim))
    bound = max(ndim, 1)
    for d in dim:
        if not -bound <= d < bound:
            raise IndexError(f"[{op}] dim must be in [{-bound}, {bound - 1}], got {d}")
    dims = sorted(d % bound for d in dim)
    if len(set(dims)) < len(dims):
        raise RuntimeError(f"[{op}] dim names a dimension twice, got {list(dim)}")
    return tuple(dims) if ndim else ()


def _program(
    name: str,
    signature: expression.Signature,
    nodes: tuple[Node, Node, Node],
    identity: float | None,
) -> Reduction:
    scalars = tuple(signature.scalars)
    parts = (
        source.Function("compute_map", signature.tensors, scalars, nodes[:1]),
        source.Function("compute_reduce", ("a", "b"), (), nodes[1:2]),
        source.Function("compute_post", ("a", "n"), scalars, nodes[2:]),
    )
    texts = [f"{f.name}({', '.join(f.tensors)}; {', '.join(f.scalars)}) {f.body('double')}" for f in parts]
    content = "\n".join([name, *texts, f"identity {identity!r}"])
    return unique(content, lambda: Reduction(name, parts, identity, content))


class _Gradient:
    """The gradients of all tensors from the output's, in one elementwise program."""

    def __init__(self, program: Reduction, nodes: Sequence[Node], grad: str, out: str) -> None:
        used = frozenset[str]().union(*map(expression.names, nodes))
        self.inputs = tuple(k for k, name in enumerate(program.tensors) if name in used)
        self.output = out in used
        tensors = [grad, *(program.tensors[k] for k in self.inputs), *([out] if self.output else [])]
        elementwise = pointwise(f"{program.name}_backward", tensors, (*program.scalars, "n"), nodes)
        self.program = elementwise
        self.call = differentiable(elementwise, Gradients(elementwise, ahead=False)).call


def _differentiable(program: Reduction, gradient: _Gradient | None, *, overrides: bool = False) -> Differentiable:
    """``gradient`` None: derived from the plain composition."""
    count = len(program.tensors)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert gradient is not None
        ctx.scalars, (ctx.dim, ctx.keepdim) = inputs[count:-3], inputs[-3:-1]
        ctx.like = [(x.shape, x.dtype) for x in inputs[:count]]
        ctx.save_for_backward(*[inputs[k] for k in gradient.inputs], *([output] if gradient.output else []))

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        assert gradient is not None
        shape = torch.broadcast_shapes(*(shape for shape, _ in ctx.like))
        dims = normalised(program.name, ctx.dim, len(shape))
        kept = list(ctx.saved_tensors)
        if gradient.output:
            kept[-1] = _spread(kept[-1], dims, ctx.keepdim)
        found = gradient.call(
            _spread(grad, dims, ctx.keepdim).expand(shape), *kept, *ctx.scalars, float(_length(shape, dims))
        )
        found = found if isinstance(found, tuple) else (found,)
        gradients = (
            like(g, *as_it_was) if needed else None
            for g, as_it_was, needed in zip(found, ctx.like, ctx.needs_input_grad, strict=False)
        )
        return *gradients, *[None] * (len(ctx.scalars) + 3)

    def batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...] | None:
        rank = max(x.dim() - (d is not None) for x, d in zip(inputs[:count], in_dims, strict=False))
        if rank == 0:  # nothing to reduce, which no dim= says
            return None
        *rest, dim, keepdim, wide = aligned(count, size, in_dims, *inputs)
        return *rest, [d + 1 for d in normalised(program.name, dim, rank)], keepdim, wide

    return Differentiable(
        program.name,
        program.raw,
        program.reference,
        save=save if gradient else None,
        backward=backward if gradient else None,
        batch=batch,
        inline=True,
        overrides=overrides,
    )


def _spread(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if not keepdim:
        for d in dims:
            x = x.unsqueeze(d)
    return x


def _length(shape: Sequence[int], dims: Sequence[int]) -> int:
    n = 1
    for d in dims:
        n = n * shape[d]
    return n


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
        self._program = _program(self.name, signature, nodes, identity)
        self.content_hash = self._program.op
        taken = (*self.tensors, *self.scalars)
        (grad,), (out,) = free_names("grad", 1, taken), free_names("out", 1, taken)
        self._sum = self._post = None
        self._kernels: Callable[[torch.dtype], list[Kernels]] = lambda dtype: []  # of the derivative
        if given is not None:
            given_gradient = _Gradient(self._program, given, grad, out)
            self._call = _differentiable(self._program, given_gradient, overrides=True).call
            self._kernels = lambda dtype: [of_one_dtype(given_gradient.program, dtype)]
        elif self._program.kind != "a + b":
            self._call = _differentiable(self._program, None).call
        else:
            # The sum, which is linear in what is mapped, and what is made of it: each with its own derivative.
            derivatives = [expression.chain(nodes[:1], (grad,), t) for t in self.tensors]
            (a,) = expression.parse("a", ("a",))
            total = _program(f"{self.name}_sum", signature, (nodes[0], nodes[1], a), identity)
            of_sum = _Gradient(total, derivatives, grad, out)
            self._sum = _differentiable(total, of_sum).call
            self._call = _differentiable(self._program, None).call
            post = pointwise(f"{self.name}_post", ("a",), (*self.scalars, "n"), nodes[2:])
            of_post = Gradients(post)
            self._post = differentiable(post, of_post).call

            def kernels(dtype: torch.dtype) -> list[Kernels]:
                wide = torch.promote_types(dtype, torch.float32)
                dtypes = [wide, wide, *[dtype] * len(of_sum.inputs)]  # the gradient of the sum is wide as that is
                return [
                    Kernels(total, [wide, *[dtype] * len(total.tensors)], source.REDUCTIONS),
                    Kernels(of_sum.program, dtypes, of_one_dtype(of_sum.program, dtype).variants),
                    *(of_one_dtype(program, wide) for program in (post, *of_post.programs())),
                ]

            self._kernels = kernels

    def __call__(
        self, *tensors: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, **scalars: float
    ) -> Tensor:
        if len(tensors) != len(self.tensors):
            raise wrong_count(self.name, self.tensors, tensors, self.scalars, scalars)
        values = scalar_values(self.name, self.scalars, scalars)
        dims = _dims(self.name, dim)
        if not isinstance(keepdim, bool):
            raise TypeError(f"[{self.name}] keepdim must be a bool, got {type(keepdim).__name__}")
        try:
            if self._sum is None or self._post is None or not _takes_the_sum_apart(tensors):
                return self._call(*tensors, *values, dims, keepdim, False)
            total = self._sum(*tensors, *values, dims, keepdim, True)
            shape = torch.broadcast_shapes(*(t.shape for t in tensors))
            n = float(_length(shape, normalised(self.name, dims, len(shape))))
            return self._post(total, *values, n).to(promoted(tensors))
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

        def kernels(dtype: torch.dtype) -> list[Kernels]:
            whole = Kernels(self._program, [dtype] * (1 + len(self.tensors)), source.REDUCTIONS)
            return [whole, *(self._kernels(dtype) if backward else [])]

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

    def dispatched(self, *tensors: Tensor) -> tuple[Any, tuple[Any, ...]]:
        """What torch's dispatcher is called with, for ``torch.library.opcheck``."""
        return self._program.raw, (*tensors, *self.scalars.values(), [], False, False)


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
    if identity is not None and not isinstance(identity, (int, float)):
        raise TypeError(f"[{parsed.name}] identity must be a number, got {type(identity).__name__}")
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
        identity = _KINDS.get(nodes[1], ("", None))[1]
    return Reduce(parsed, nodes, given, identity, (again, (signature,)))


def _one(text: str, names: Sequence[str], where: str) -> Node:
    nodes = expression.parse(text, names, where=where)
    if len(nodes) != 1:
        raise ExpressionError(f"[{where}] expected one expression, got {len(nodes)}")
    return nodes[0]
