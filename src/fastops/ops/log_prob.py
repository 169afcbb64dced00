"""log_prob: the logarithm of the probability of a class in each row of logits, and the rows' entropy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_tensors, type_error
from .._derivative import unused_as_none
from .._operator import Differentiable, Operator, elementwise_batch, writing_operator
from ..families.likelihood import (
    at_target,
    check,
    check_options,
    one_hot,
    rows_of,
    split_rows,
    statistics_dtype,
    without_defaults,
)
from ..sharding import EMPTY, Call, Output, Split

Triple = tuple[Tensor, Tensor, Tensor]

_DEFAULTS = (-100, 1.0, None, False)  # the schema's, from ignore_index on


def log_prob_reference(
    input: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Triple:
    """The op in plain PyTorch: log-probabilities, entropies if asked for, and the logarithms of the sums of e^u."""
    check("log_prob", input, target, -1)
    kept, y, u, _ = rows_of("log_prob", input, target, ignore_index, scale, softcap)
    log_p, lse = torch.log_softmax(u, -1), torch.logsumexp(u, -1)
    spread = torch.where(kept, _entropy(log_p), 0) if entropy else lse.new_empty(0)
    found = torch.where(kept, at_target(log_p, y), 0), spread, torch.where(kept, lse, 0)
    return found[0].contiguous(), found[1].contiguous(), found[2].contiguous()


def _entropy(log_p: Tensor) -> Tensor:
    return -_p_log_p(log_p).sum(-1)


def _p_log_p(log_p: Tensor) -> Tensor:
    """0 where p is, of which the logarithm is no number."""
    return log_p.exp() * torch.where(log_p == -torch.inf, 0, log_p)


def log_prob_backward_reference(
    grad: Tensor,
    grad_entropy: Tensor | None,
    input: Tensor,
    target: Tensor,
    lse: Tensor,
    entropy: Tensor,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    first_class: int = 0,
    classes: int | None = None,
) -> Tensor:
    """Gradient for input. lse and entropy are made again where all classes are there, so that this can be
    differentiated.
    """
    check("log_prob", input, target, -1)
    kept, y, u, slope = rows_of("log_prob", input, target, ignore_index, scale, softcap, classes)
    log_p = torch.log_softmax(u, -1) if classes is None else u - lse.unsqueeze(-1)
    p = log_p.exp()
    du = grad.to(u.dtype).unsqueeze(-1) * (one_hot(y, u, first_class) - p)
    if grad_entropy is not None:
        of_row = _entropy(log_p) if classes is None else entropy
        by_entropy = _p_log_p(log_p) + p * of_row.unsqueeze(-1)
        du = du - grad_entropy.to(u.dtype).unsqueeze(-1) * by_entropy
    return torch.where(kept.unsqueeze(-1), du * slope, 0).to(input.dtype).contiguous()


def _fake(
    input: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
) -> Triple:
    check("log_prob", input, target, -1)

    def rows(shape: Any) -> Tensor:
        return input.new_empty(shape, dtype=statistics_dtype(input))

    return rows(target.shape), rows(target.shape if entropy else 0), rows(target.shape)


def _batch_backward(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, ...]:
    moved = list(elementwise_batch(size, in_dims, *inputs))
    if moved[1] is None:  # there are no entropies, of which a batch would have one more dimension
        moved[5] = moved[4].new_empty(0)
    return tuple(moved)


def _sharding(call: Call) -> Split:
    return split_rows(
        call,
        len(call.first) - 1,
        ("target",),
        lambda rows, _: [Output(rows), Output(rows) if call["entropy"] else EMPTY, Output(rows)],
    )


def _sharding_backward(call: Call) -> Split:
    of_rows = {"grad", "grad_entropy", "target", "lse"}
    if len(call.shapes["entropy"]) == len(call.shapes["target"]) and "grad_entropy" in call.shapes:
        of_rows.add("entropy")
    return split_rows(call, len(call.shapes["target"]), of_rows, lambda _, logits: [Output(logits)])


_derivative = Operator(
    "log_prob_backward",
    log_prob_backward_reference,
    lambda grad, grad_entropy, input, *others: input.new_empty(input.shape),
    batch=_batch_backward,
    sharding=_sharding_backward,
)


# The gradient of logits that some classes have, where it is told to be: that may be where the logits are.
log_prob_backward_out = writing_operator("log_prob_backward_out", log_prob_backward_reference)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    _, entropy, lse = outputs
    unused_as_none(ctx)
    ctx.count, ctx.options = len(inputs), inputs[2:5]
    ctx.save_for_backward(*inputs[:2], lse, entropy)


def _backward(ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None = None) -> Any:
    if grad is None:
        if grad_entropy is None:
            return (None,) * ctx.count
        grad = torch.zeros_like(grad_entropy)
    gradient = _derivative.call(grad, grad_entropy, *ctx.saved_tensors, *ctx.options)
    return (gradient, *(None,) * (ctx.count - 1))


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """One more dimension in front, of which each row is one as before."""
    op = _with_entropy if len(inputs) > 5 and inputs[5] else _op
    log_prob, entropy, lse = op._twin(*elementwise_batch(info.batch_size, in_dims, *inputs))
    if op is _op:
        entropy = entropy.expand(info.batch_size, 0)
    return (log_prob, entropy, lse), (0, 0, 0)


_op = Operator("log_prob", log_prob_reference, _fake, save=_save, backward=_backward, vmap=_vmap, sharding=_sharding)
# Of the same raw op two outputs are differentiable here.
_with_entropy = Differentiable(
    "log_prob", _op.raw, log_prob_reference, outputs=2, save=_save, backward=_backward, vmap=_vmap
)


def raw_arguments(
    input: Tensor, target: Tensor, scale: float, softcap: float | None, ignore_index: int, entropy: bool
) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments, without what the schema has as default."""
    if not (type(scale) is float and softcap is None and type(ignore_index) is int):
        ignore_index = check_options("log_prob", ignore_index, softcap, scale=scale)
    if entropy is not False and entropy is not True:
        raise type_error("log_prob", "entropy", "a bool", entropy)
    if not (isinstance(input, Tensor) and isinstance(target, Tensor)):
        check_tensors("log_prob", input=input, target=target)
    if scale == 1.0 and softcap is None and ignore_index == -100 and not entropy:
        return input, target  # the usual, in less time than the loop over defaults takes
    return input, target, *without_defaults((ignore_index, scale, softcap, entropy), _DEFAULTS)


def log_prob(
    input: Tensor,
    target: Tensor,
    *,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Log-probability of a class in each row of logits, such as that of the next token, and the row's entropy.

    Of a row with logits :math:`x` and the target :math:`y`, with :math:`u = s x`, or :math:`u = c \tanh(s x / c)` with
    a softcap :math:`c`:

    .. math:: \log p_y = u_y - \log \sum_j e^{u_j}, \qquad H = -\sum_j p_j \log p_j

    .. math:: \frac{\partial \log p_y}{\partial u_j} = [j = y] - p_j, \qquad
              \frac{\partial H}{\partial u_j} = -p_j (\log p_j + H)

    with :math:`p \log p = 0` at :math:`p = 0`. A row's results depend on nothing but the row.

    Args:
        input: logits, [..., V], any strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels;
            other dtypes and devices the plain composition.
        target: a class for each row, int64 or uint8, of ``input``'s shape without the last dimension.
        scale: :math:`s`; of logits :math:`1 / T` for a temperature :math:`T`.
        softcap: :math:`c`, greater than 0. None: the logits are not capped.
        ignore_index: rows with this target have log-probability and entropy 0 and gradient exactly 0, whatever they
            hold.
        entropy: the second result too, from the same pass over the logits.

    Returns:
        The log-probabilities, of ``target``'s shape, in float32, of float64 in float64; with ``entropy`` a pair of them
        and the entropies, in nats.

    Raises:
        IndexError: on the CPU, a target that is neither a class nor ``ignore_index``; of a compiled graph RuntimeError.
            On CUDA, and under transforms that cannot look at values, the row's results and gradient are NaN instead.
        RuntimeError: shapes, dtypes or ``softcap`` are wrong.
        TypeError: an argument of another type.

    The same as :func:`fastops.log_softmax` at the targets, without a tensor of ``input``'s size. Gradients have
    ``input``'s dtype.
    """
    if has_torch_function_variadic(input, target):
        return handle_torch_function(
            log_prob,
            (input, target),
            input,
            target,
            scale=scale,
            softcap=softcap,
            ignore_index=ignore_index,
            entropy=entropy,
        )
    arguments = raw_arguments(input, target, scale, softcap, ignore_index, entropy)
    return (_with_entropy if entropy else _op).call(*arguments)
