"""qk_norm_rope: rms_norm of each head of q and k, then rope."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_numbers, check_tensors
from .._derivative import filled, reach_of, unused_as_none, vjp_of
from .._norm import rms_eps
from .._operator import Operator, check_parameter, wide
from ..families.rope import (
    Rotation,
    batched,
    batched_tables,
    check_arguments,
    like,
    sharding,
    sharding_of_weights,
    where,
)

Pair = tuple[Tensor, Tensor]
Four = tuple[Tensor, Tensor, Tensor, Tensor]
_DEFAULTS: tuple[Any, ...] = (None, None, False, -2, None, 0.0)  # the schema's, from positions on
_NAME = "qk_norm_rope"


def _check(q: Tensor, k: Tensor | None, q_weight: Tensor | None, k_weight: Tensor | None) -> None:
    if k is None and k_weight is not None:
        raise RuntimeError(f"[{_NAME}] k_weight must be None without k, got a tensor")
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None:
            check_parameter(_NAME, name, weight, [q.shape[-1]], q)


def _factor(weight: Tensor | None, offset: float, like: Tensor) -> Tensor | float:
    return 1.0 if weight is None else weight.to(like.dtype) + offset


def _normalized(x: Tensor, eps: float | None) -> tuple[Tensor, Tensor]:
    """Heads in the type that is computed in, divided by their root mean square, and one over that."""
    rstd = torch.rsqrt((x * x).mean(-1, keepdim=True) + rms_eps(x, eps))
    return x * rstd, rstd


def qk_norm_rope_reference(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Pair:
    """The op in plain PyTorch."""
    rotation = Rotation(_NAME, q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    _check(q, k, q_weight, k_weight)

    def of(x: Tensor, weight: Tensor | None) -> Tensor:
        h, _ = _normalized(wide(x), eps)
        return like(rotation(h * _factor(weight, weight_offset, h)), x)

    return of(q, q_weight), q.new_empty(0) if k is None else of(k, k_weight)


def qk_norm_rope_backward_reference(
    grad_q: Tensor,
    grad_k: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int | None,
    interleaved: bool,
    seq_dim: int,
    eps: float | None,
    weight_offset: float,
    need_weights: bool,
) -> Four:
    """Gradients of q, k and the weights; tensors without elements for what is not there or not asked for."""
    rotation = Rotation(_NAME, q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)

    def of(grad: Tensor, x: Tensor, weight: Tensor | None) -> Pair:
        h, rstd = _normalized(wide(x), eps)
        g = rotation(wide(grad), adjoint=True)
        scaled = g * _factor(weight, weight_offset, h)
        gradient = like(rstd * (scaled - h * (scaled * h).mean(-1, keepdim=True)), x)
        if weight is None or not need_weights:
            return gradient, q.new_empty(0)
        return gradient, (g * h).sum(tuple(range(h.dim() - 1))).to(weight.dtype)

    of_q, of_q_weight = of(grad_q, q, q_weight)
    if k is None or grad_k is None:
        return of_q, q.new_empty(0), of_q_weight, q.new_empty(0)
    of_k, of_k_weight = of(grad_k, k, k_weight)
    return of_q, of_k, of_q_weight, of_k_weight


def _fake(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Pair:
    Rotation(_NAME, q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    _check(q, k, q_weight, k_weight)
    return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)


def _fake_backward(
    grad_q: Tensor,
    grad_k: Tensor | None,
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int | None,
    interleaved: bool,
    seq_dim: int,
    eps: float | None,
    weight_offset: float,
    need_weights: bool,
) -> Four:
    weights = (
        torch.empty_like(w, memory_format=torch.contiguous_format) if need_weights and w is not None else q.new_empty(0)
        for w in (q_weight, k_weight)
    )
    return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k), *weights  # type: ignore[return-value]


_backward_op = Operator(
    f"{_NAME}_backward",
    qk_norm_rope_backward_reference,
    _fake_backward,
    outputs=4,
    sharding=sharding_of_weights,
)


def _complete(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*inputs, *_DEFAULTS[len(inputs) - 6 :])


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    complete = _complete(inputs)
    unused_as_none(ctx)
    ctx.options, ctx.given = complete[7:], len(inputs)
    ctx.save_for_backward(*complete[:7])


def _backward(ctx: Any, grad_q: Tensor | None, grad_k: Tensor | None) -> Any:
    needed = ctx.needs_input_grad
    q, k, q_weight, k_weight, *tables = ctx.saved_tensors
    cos, sin, positions = tables
    found: list[Any] = [None] * ctx.given
    each = ((grad_q, q, q_weight), (grad_k if k is not None else None, k, k_weight))
    moving = [at for at, (grad, *_) in enumerate(each) if grad is not None and (needed[at] or needed[at + 2])]
    if moving:  # each by itself, one of them alone too
        pair = [each[at] for at in moving] + [(None, None, None)]
        operands = [x for both in zip(pair[0], pair[1], strict=True) for x in both]
        gradients = _backward_op.call(*operands, *tables, *ctx.options, needed[2] or needed[3])
        for place, at in enumerate(moving):
            for of in (0, 2):  # the heads, their weight
                if needed[at + of]:
                    found[at + of] = gradients[place + of]
    if needed[4] or needed[5]:

        def of_tables(cos: Tensor, sin: Tensor) -> Pair:
            return qk_norm_rope_reference(q, k, q_weight, k_weight, cos, sin, positions, *ctx.options)

        outputs, vjp = vjp_of(of_tables, cos, sin)
        of_cos, of_sin = vjp(filled((grad_q, grad_k), outputs))
        found[4:6] = of_cos if needed[4] else None, of_sin if needed[5] else None
    return tuple(found)


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    q, k, q_weight, k_weight, cos, sin, positions, *options = _complete(inputs)
    dims = (*in_dims, *(None,) * 6)
    one = q if in_dims[0] is None else q.select(in_dims[0], 0)
    tables = batched_tables(q, in_dims[0], dims[4:7], (cos, sin, positions))
    if tables is None or one.dim() == 2 or dims[2] is not None or dims[3] is not None:  # one set of weights an element
        return torch.vmap(qk_norm_rope_reference, in_dims)(*inputs), (0, 0)
    options[2] = where(_NAME, one.shape, options[2]).seq  # a batch in front does not shift it
    q, k = batched(info.batch_size, in_dims[:2], (q, k))
    return _op._twin(q, k, q_weight, k_weight, *tables, *options), (0, None if k is None else 0)


_op = Operator(
    _NAME,
    qk_norm_rope_reference,
    _fake,
    save=_save,
    backward=_backward,
    outputs=2,
    reach=reach_of([(0, 2, 4, 5), (1, 3, 4, 5)]),  # q, its weight, cos and sin; k, its weight, cos and sin
    vmap=_vmap,
    sharding=sharding,
)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> tuple[Tensor, Tensor | None]:
    r"""Root mean square normalisation of each head of queries and keys, then rotary position embedding.

    .. math:: h = \frac{x}{\sqrt{\mathrm{E}[x^2] + \epsilon}}, \qquad y = R\,\bigl(h \cdot (w + o)\bigr)

    with the mean over a head and :math:`R` as :func:`fastops.rope` rotates; forward and backward in one pass each. With
    :math:`g = R^\top\,\partial L/\partial y`,

    .. math:: \frac{\partial L}{\partial x} = \frac{g' - h\,\mathrm{E}[g' h]}{\sqrt{\mathrm{E}[x^2] + \epsilon}}, \quad
              g' = g (w + o), \qquad \frac{\partial L}{\partial w} = \sum_{heads} g h

    All between input and output is float32 (float64 for float64) and rounded once. The backward keeps q, k and the
    weights, no statistics.

    Args:
        q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim: as in :func:`fastops.rope`. On CUDA our kernels
            run for heads of up to 256 numbers, 248 where a part is rotated.
        q_weight, k_weight: :math:`w`, ``[dim]``, of ``q``'s dtype, or float32 beside a half type. None: no factor.
        eps: :math:`\epsilon`, in the units of ``q`` squared. None: as in :func:`fastops.rms_norm`.
        weight_offset: :math:`o`, added to weights that are there; 1.0 for weights kept around zero, as Gemma's.

    Returns:
        New tensors of ``q``'s and ``k``'s shapes, dtype and order in memory; None for no ``k``.

    Raises:
        RuntimeError, TypeError: as :func:`fastops.rope`.
    """
    tensors = (q, k, q_weight, k_weight, cos, sin, positions)
    if has_torch_function_variadic(*tensors):
        return handle_torch_function(
            qk_norm_rope,
            tensors,
            q,
            k,
            q_weight,
            k_weight,
            cos,
            sin,
            eps,
            weight_offset=weight_offset,
            positions=positions,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            seq_dim=seq_dim,
        )
    check_arguments(_NAME, q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None:
            check_tensors(_NAME, **{name: weight})
    check_numbers(_NAME, eps=eps, weight_offset=weight_offset)
    found = _op.call(
        q, k, q_weight, k_weight, cos, sin, positions, rotary_dim, interleaved, seq_dim, eps, weight_offset
    )
    return found if k is not None else (found[0], None)
