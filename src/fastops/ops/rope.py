"""rope: pairs of a head's numbers turned by the angles of its token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._derivative import filled, reach_of, unused_as_none, vjp_of
from .._operator import Operator, wide
from ..families.rope import Rotation, batched, batched_tables, check_arguments, like, sharding, where

Pair = tuple[Tensor, Tensor]
_DEFAULTS: tuple[Any, ...] = (None, None, False, -2, False)  # the schema's, from positions on


def rope_reference(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
    adjoint: bool = False,
) -> Pair:
    """The op in plain PyTorch; with ``adjoint`` from gradients of the results those of q and k."""
    rotation = Rotation("rope", q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    of_q = like(rotation(wide(q), adjoint), q)
    return of_q, q.new_empty(0) if k is None else like(rotation(wide(k), adjoint), k)


def _fake(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
    adjoint: bool = False,
) -> Pair:
    Rotation("rope", q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    return torch.empty_like(q), q.new_empty(0) if k is None else torch.empty_like(k)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    q, k, cos, sin, *given = inputs
    positions, *options = (*given, *_DEFAULTS[len(given) :])
    ctx.options, ctx.given = tuple(options), len(inputs)
    ctx.has_k = k is not None
    unused_as_none(ctx)
    # Of q and k the gradients need nothing; those of the tables do.
    kept = (q, k) if ctx.needs_input_grad[2] or ctx.needs_input_grad[3] else (None, None)
    ctx.save_for_backward(cos, sin, positions, *kept)


def _backward(ctx: Any, grad_q: Tensor | None, grad_k: Tensor | None) -> Any:
    cos, sin, positions, q, k = ctx.saved_tensors
    options, adjoint = ctx.options[:-1], ctx.options[-1]
    needed = ctx.needs_input_grad
    grads = (grad_q, grad_k) if ctx.has_k else (grad_q,)
    found: list[Any] = [None] * ctx.given
    moving = [at for at, grad in enumerate(grads) if needed[at] and grad is not None]
    if moving:  # each is rotated by itself, one of them alone too
        pair = [grads[at] for at in moving] + [None]
        turned = _op.call(pair[0], pair[1], cos, sin, positions, *options, not adjoint)
        for at, gradient in zip(moving, turned, strict=False):
            found[at] = gradient
    if needed[2] or needed[3]:

        def of_tables(cos: Tensor, sin: Tensor) -> Pair:
            return rope_reference(q, k, cos, sin, positions, *ctx.options)

        outputs, vjp = vjp_of(of_tables, cos, sin)
        of_cos, of_sin = vjp(filled((grad_q, grad_k), outputs))
        found[2:4] = of_cos if needed[2] else None, of_sin if needed[3] else None
    return tuple(found)


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    q, k, cos, sin, *given = inputs
    positions, *options = (*given, *_DEFAULTS[len(given) :])
    options[2] = where("rope", _one(q, in_dims[0]).shape, options[2]).seq  # a batch in front does not shift it
    dims = (*in_dims, *(None,) * 5)
    tables = batched_tables(q, in_dims[0], dims[2:5], (cos, sin, positions))
    if tables is None or q.dim() - (in_dims[0] is not None) == 2:
        return torch.vmap(rope_reference, in_dims)(*inputs), (0, 0)
    q, k = batched(info.batch_size, in_dims[:2], (q, k))
    return _op._twin(q, k, *tables, *options), (0, None if k is None else 0)


def _one(x: Tensor, dim: int | None) -> Tensor:
    return x if dim is None else x.select(dim, 0)


_op = Operator(
    "rope",
    rope_reference,
    _fake,
    save=_save,
    backward=_backward,
    outputs=2,
    reach=reach_of([(0, 2, 3), (1, 2, 3)]),  # q, cos and sin; k, cos and sin
    vmap=_vmap,
    sharding=sharding,
)


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    positions: Tensor | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    seq_dim: int = -2,
) -> tuple[Tensor, Tensor | None]:
    r"""Rotary position embedding of queries and keys (Su et al. 2021, arXiv:2104.09864).

    .. math:: y_1 = x_1 c_1 - x_2 s_1, \qquad y_2 = x_2 c_2 + x_1 s_2

    of each pair of a head's numbers, by the token's row of ``cos`` and ``sin``: number :math:`i` of the first half of
    what is rotated and :math:`i` of the second, or with ``interleaved`` numbers :math:`2i` and :math:`2i + 1`. The
    gradients are those of the formula, also where the two sines differ:

    .. math:: dx_1 = c_1\,dy_1 + s_2\,dy_2, \qquad dx_2 = c_2\,dy_2 - s_1\,dy_1

    q and k are rotated in one pass, each with its own number of heads and strides. The half types are computed in
    float32 and rounded once. Nothing is written in place, and nothing of q and k is kept for the backward.

    Args:
        q: ``[*batch, heads, seq, dim]``, or with another ``seq_dim`` as it says; the heads are the dimension before
            the last of those that remain, such as ``[*batch, seq, heads, dim]`` with ``seq_dim=-3``. Two dimensions are
            ``[seq, dim]``. Any strides: ``[B, H, S, D]`` views of ``[B, S, H, D]`` are not copied. float16, bfloat16,
            float32 and float64 on CPU and CUDA run our kernels for heads of up to 2048 numbers; others the plain
            composition.
        k: the same with any number of heads, of ``q``'s dtype. None: there is none.
        cos, sin: ``[seq, width]`` or ``[*batch, seq, width]``, where a batch size may be 1; with ``positions``
            ``[rows, width]``. float32 or ``q``'s dtype. ``width`` is that of what is rotated, or half of it, each
            for both numbers of a pair.
        positions: int64 or int32, ``[seq]`` or ``[*batch, seq]``: the tables' row of each token, which the kernel looks
            up. On CUDA a position that the tables do not have gives NaN. None: the tables have a row for each token.
        rotary_dim: how many leading numbers of a head are rotated, an even number; the others stay as they are. None:
            ``width``, where that is more than half of a head; of an odd one twice as many. Else it has to be said.
        interleaved: pairs lie side by side, as in GPT-J.
        seq_dim: the dimension of the tokens.

    Returns:
        New tensors of ``q``'s and ``k``'s shapes, dtype and order in memory; None for no ``k``.

    Raises:
        RuntimeError: shapes, dtypes or devices that do not fit; a width that may be read both ways; on the CPU a
            position that the tables do not have.
        TypeError: an argument of another type.

    The gradients of ``cos`` and ``sin`` come from the plain composition.

    Example::

        >>> q, k = torch.randn(2, 32, 128, 64), torch.randn(2, 8, 128, 64)
        >>> cos, sin = fastops.nn.RotaryEmbedding(64)(torch.arange(128))
        >>> q, k = fastops.rope(q, k, cos, sin)
    """
    if has_torch_function_variadic(q, k, cos, sin, positions):
        return handle_torch_function(
            rope,
            (q, k, cos, sin, positions),
            q,
            k,
            cos,
            sin,
            positions=positions,
            rotary_dim=rotary_dim,
            interleaved=interleaved,
            seq_dim=seq_dim,
        )
    check_arguments("rope", q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    if seq_dim != -2 or interleaved:
        found = _op.call(q, k, cos, sin, positions, rotary_dim, interleaved, seq_dim)
    elif positions is not None or rotary_dim is not None:
        found = _op.call(q, k, cos, sin, positions, rotary_dim)
    else:
        found = _op.call(q, k, cos, sin)
    return found if k is not None else (found[0], None)
