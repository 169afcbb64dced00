"""The derivatives of reductions: elementwise programs of the output's gradient, spread over what was reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._operator import Differentiable
from .._promotion import promoted
from ..sharding import Call, Output, Split, apart, broadcast
from . import expression, source
from .elementwise import Gradients, aligned, differentiable, of_one_dtype
from .expression import Node
from .pointwise import Pointwise, pointwise
from .program import Kernels
from .reduction_program import Reduction, length, normalised, reduction_program


class Gradient:
    """The gradients of all tensors from the output's, in one elementwise program."""

    def __init__(self, program: Reduction, nodes: Sequence[Node], grad: str, out: str) -> None:
        used = frozenset[str]().union(*map(expression.names, nodes))
        self.inputs = tuple(k for k, name in enumerate(program.tensors) if name in used)
        self.output = out in used
        tensors = [grad, *(program.tensors[k] for k in self.inputs), *([out] if self.output else [])]
        self.program = pointwise(f"{program.name}_backward", tensors, (*program.scalars, "n"), nodes)
        self.call = differentiable(self.program, Gradients(self.program, ahead=False)).call

    def __call__(self, *inputs: Any, n: int) -> Any:
        """Return the gradients. ``inputs`` are the output's gradient, the saved tensors and the scalars."""
        return _with_length(self.call, self.program, *inputs, n=n)


def _with_length(call: Callable[..., Any], program: Pointwise, *inputs: Any, n: int) -> Any:
    """Call a program whose last scalar is the length of a row.

    A symbolic length takes the plain composition, because the raw op's float would make it a constant.
    """
    if isinstance(n, torch.SymInt):
        return program.reference(*inputs, torch.sym_float(n))
    return call(*inputs, float(n))


def differentiable_reduction(
    program: Reduction, gradient: Gradient | None, *, overrides: bool = False
) -> Differentiable:
    """``gradient`` None: derived from the plain composition."""
    count = len(program.tensors)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        assert gradient is not None
        ctx.scalars, (ctx.dim, ctx.keepdim) = inputs[count:-3], inputs[-3:-1]
        ctx.shapes = [x.shape for x in inputs[:count]]
        ctx.save_for_backward(*[inputs[k] for k in gradient.inputs], *([output] if gradient.output else []))

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        assert gradient is not None
        shape = torch.broadcast_shapes(*ctx.shapes)
        dims = normalised(program.name, ctx.dim, len(shape))
        kept = list(ctx.saved_tensors)
        if gradient.output:
            kept[-1] = _spread(kept[-1], dims, ctx.keepdim)
        found = gradient(_spread(grad, dims, ctx.keepdim).expand(shape), *kept, *ctx.scalars, n=length(shape, dims))
        found = found if isinstance(found, tuple) else (found,)
        # Autograd sums that of a broadcast input and rounds that of a promoted one.
        gradients = (g if needed else None for g, needed in zip(found, ctx.needs_input_grad, strict=False))
        return *gradients, *[None] * (len(ctx.scalars) + 3)

    def batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...] | None:
        rank = max(x.dim() - (d is not None) for x, d in zip(inputs[:count], in_dims, strict=False))
        if rank == 0:  # nothing to reduce, which no dim= says
            return None
        *rest, dim, keepdim, wide = aligned(count, size, in_dims, *inputs)
        return *rest, [d + 1 for d in normalised(program.name, dim, rank)], keepdim, wide

    def sharding(call: Call) -> Split:
        """The dimensions that are kept; of a sum also the others, each process then has a summand."""
        inputs, rank = broadcast(call)
        dims = normalised(program.name, call["dim"], rank)
        kept = [d for d in range(rank) if d not in dims]
        result = tuple(None if d in dims else d for d in range(rank)) if call["keepdim"] else tuple(kept)
        if not program.is_sum:
            return Split(inputs, [Output(result)], apart(kept))
        return Split(inputs, [Output(result, sums=dims)], apart(range(rank)))

    return Differentiable(
        program.name,
        program.raw,
        program.reference,
        save=save if gradient else None,
        backward=backward if gradient else None,
        batch=batch,
        inline=True,
        overrides=overrides,
        sharding=sharding,
    )


def _spread(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    if not keepdim:
        for d in dims:
            x = x.unsqueeze(d)
    return x


class SumApart:
    """A reduction by ``a + b`` in two: the sum, which is linear in what is mapped, and what ``post`` makes of it.

    Each has a derivative of its own, derived from its expression.
    """

    def __init__(
        self,
        signature: expression.Signature,
        nodes: tuple[Node, Node, Node],
        identity: float | None,
        grad: str,
        out: str,
    ) -> None:
        self._name = signature.name
        mapped, reduced, post = nodes
        (a,) = expression.parse("a", ("a",))
        self._total = reduction_program(f"{signature.name}_sum", signature, (mapped, reduced, a), identity)
        scalars = self._total.scalars
        derivatives = [expression.chain((mapped,), (grad,), t) for t in signature.tensors]
        self._of_total = Gradient(self._total, derivatives, grad, out)
        self._sum = differentiable_reduction(self._total, self._of_total).call
        self._post = pointwise(f"{signature.name}_post", ("a",), (*scalars, "n"), (post,))
        self._of_post = Gradients(self._post)
        self._finish = differentiable(self._post, self._of_post).call

    def __call__(self, tensors: Sequence[Tensor], scalars: Sequence[float], dims: list[int], keepdim: bool) -> Tensor:
        total = self._sum(*tensors, *scalars, dims, keepdim, True)
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        n = length(shape, normalised(self._name, dims, len(shape)))
        return _with_length(self._finish, self._post, total, *scalars, n=n).to(promoted(tensors))  # type: ignore[no-any-return]

    def kernels(self, dtype: torch.dtype) -> list[Kernels]:
        wide = torch.promote_types(dtype, torch.float32)
        of_total = self._of_total.program
        dtypes = [wide, wide, *[dtype] * len(self._of_total.inputs)]  # the gradient of the sum is wide as that is
        return [
            Kernels(self._total, [wide, *[dtype] * len(self._total.tensors)], source.REDUCTIONS),
            Kernels(of_total, dtypes, source.POINTWISE),
            *(of_one_dtype(program, wide) for program in (self._post, *self._of_post.programs())),
        ]
