"""linear_log_prob: log_prob of a linear layer's outputs, which are never whole in memory unless kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import type_error
from .._operator import Differentiable, Operator
from ..families.kept_logits import run_backward, save
from ..families.likelihood import check_classes, check_devices, check_options
from ..families.linear_operands import (
    Needs,
    check_operands,
    check_schedule,
    check_softcap,
    flat,
    forward_flops,
    gradient_flops,
    like_operands,
    of_linear,
    operand_dtype,
    plain_logits,
    product_of,
    shaped,
    slices_of,
    statistics_of,
)
from ..families.linear_sums import Scale
from ..families.linear_walk import Linear, composed, gradients, room_for
from ..families.slices import check_save
from ..sharding import is_sharded
from .likelihood_partial import linear_parts, log_prob_merge
from .log_prob import log_prob_backward_out, log_prob_backward_reference, log_prob_reference

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def linear_log_prob_reference(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    ignore_index: int = -100,
    scale: float = 1.0,
    softcap: float | None = None,
    entropy: bool = False,
    product: torch.dtype | None = None,
    width: int = 1,
    kept: int = 0,
) -> Four:
    """The op in plain PyTorch, of the whole logits: log-probabilities, entropies if asked for, lse, and no logits."""
    logits = plain_logits(input, linear_weight, linear_bias)
    found = log_prob_reference(logits, target, ignore_index, scale, softcap, entropy)
    return *found, input.new_empty(target.numel(), 0)


class _ForwardOptions(NamedTuple):
    """What follows the operands in the schema."""

    linear_bias: Tensor | None = None
    ignore_index: int = -100
    scale: float = 1.0
    softcap: float | None = None
    entropy: bool = False
    product: torch.dtype | None = None
    width: int = 1
    kept: int = 0


def _forward(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> Four:
    o = _ForwardOptions(*given)
    classes, y = linear_weight.shape[0], flat(target)
    check_schedule("linear_log_prob", classes, o.width, o.kept)
    check_classes("linear_log_prob", y, o.ignore_index, classes)
    linear = Linear.of(input, linear_weight, o.linear_bias, o.product, o.width)
    of_part = (o.ignore_index, 0.0, o.scale, o.softcap, o.entropy)
    parts, logits = linear_parts(linear, y, 0, classes, None, of_part, o.kept)
    found, spread, lse = log_prob_merge(parts, y, classes, o.ignore_index, o.scale, o.softcap, o.entropy)
    return shaped(found, target), shaped(spread, target) if o.entropy else spread, shaped(lse, target), logits


def _fake(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> Four:
    o = _ForwardOptions(*given)

    def rows(shape: Any) -> Tensor:
        return input.new_empty(shape, dtype=statistics_of(input, o.product))

    logits = room_for(input.new_empty(0, dtype=operand_dtype(input, o.product)), target.numel(), o.kept)
    return rows(target.shape), rows(target.shape if o.entropy else 0), rows(target.shape), logits


def linear_log_prob_backward_reference(
    grad: Tensor,
    grad_entropy: Tensor | None,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    entropy: Tensor,
    logits: Tensor,
    linear_bias: Tensor | None,
    ignore_index: int,
    scale: float,
    softcap: float | None,
    product: torch.dtype | None,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
    width: int,
    first_class: int = 0,
    classes: int | None = None,
    input_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for input, linear_weight and linear_bias, of the whole logits; what is not needed is empty."""
    z = plain_logits(input, linear_weight, linear_bias)
    options = (ignore_index, scale, softcap, first_class, classes)
    d = log_prob_backward_reference(grad, grad_entropy, z, target, lse, entropy, *options)
    needs = Needs(need_input, need_weight, need_bias)
    return of_linear(d, input, linear_weight, linear_bias, needs, input_dtype)


class _BackwardOptions(NamedTuple):
    """What follows what was saved of each row in the schema."""

    linear_bias: Tensor | None
    ignore_index: int
    scale: float
    softcap: float | None
    product: torch.dtype | None
    need_input: bool
    need_weight: bool
    need_bias: bool
    width: int
    first_class: int = 0
    classes: int | None = None
    input_dtype: torch.dtype | None = None

    @property
    def needs(self) -> Needs:
        return Needs(self.need_input, self.need_weight, self.need_bias)


def _gradients(
    grad: Tensor,
    grad_entropy: Tensor | None,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    entropy: Tensor,
    logits: Tensor,
    *given: Any,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    o = _BackwardOptions(*given)
    y, classes = flat(target), linear_weight.shape[0] if o.classes is None else o.classes
    linear = Linear.of(input, linear_weight, o.linear_bias, o.product, o.width)
    g, h = grad.reshape(-1), None if grad_entropy is None else grad_entropy.reshape(-1)
    of_row = lse.reshape(-1), entropy.reshape(-1)
    scale_of: Scale | None = None
    if linear.x.dtype == torch.float16:
        g, h, scale_of = _unscaled(g, h, y != o.ignore_index, abs(o.scale))

    def write(z: Tensor, begin: int, out: Tensor) -> None:
        options = (o.ignore_index, o.scale, o.softcap, o.first_class + begin, classes)
        log_prob_backward_out(g, h, z, y, *of_row, *options, out)

    return gradients(input, linear, logits, overwrite, o.needs, write, scale_of, o.input_dtype)


def _unscaled(g: Tensor, h: Tensor | None, kept: Tensor, scale: float) -> tuple[Tensor, Tensor | None, Scale]:
    """Incoming gradients with which those of the logits are about 1, and what they are to be multiplied by."""
    size = scale * (g.abs() if h is None else torch.maximum(g.abs(), h.abs()))
    by = torch.where(size == 0, 1, size)
    return g / by, None if h is None else h / by, Scale.of(torch.where(kept, size, 0))


def _fake_gradients(
    grad: Tensor,
    grad_entropy: Tensor | None,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    entropy: Tensor,
    logits: Tensor,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    o = _BackwardOptions(*given)
    return like_operands(input, linear_weight, o.linear_bias, o.needs, o.input_dtype)


def _gradient_flops(
    grad: Any, grad_entropy: Any, input: Any, weight: Any, target: Any, lse: Any, entropy: Any, logits: Any, *given: Any
) -> int:
    return gradient_flops(input, weight, logits, _BackwardOptions(*given).needs)


_kernel = composed(_gradients)
_derivative = Operator(
    "linear_log_prob_backward",
    linear_log_prob_backward_reference,
    _fake_gradients,
    outputs=3,
    kernel=_kernel,
    flops=_gradient_flops,
)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    input, linear_weight, target, linear_bias, ignore_index, scale, softcap, _, product, ctx.width, _ = inputs
    _, entropy, lse, logits = outputs
    ctx.options = ignore_index, scale, softcap, product
    save(ctx, input, linear_weight, target, lse, entropy, logits, linear_bias)


def _backward(ctx: Any, grad: Tensor, grad_entropy: Tensor | None = None) -> Any:
    of_input, of_weight, of_bias = run_backward(ctx, _derivative, _kernel, grad, grad_entropy)
    return of_input, of_weight, None, of_bias, *(None,) * 7


_op = Operator(
    "linear_log_prob",
    linear_log_prob_reference,
    _fake,
    save=_save,
    backward=_backward,
    kernel=composed(_forward),
    flops=forward_flops,
)
# Of the same raw op two outputs are differentiable here.
_with_entropy = Differentiable(
    "linear_log_prob", _op.raw, linear_log_prob_reference, outputs=2, save=_save, backward=_backward
)


def raw_arguments(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    scale: float,
    softcap: float | None,
    ignore_index: int,
    entropy: bool,
    save: str,
) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments."""
    op = "linear_log_prob"
    ignore_index = check_options(op, ignore_index, softcap, scale=scale)
    if entropy is not False and entropy is not True:
        raise type_error(op, "entropy", "a bool", entropy)
    check_save(op, save)
    check_operands(op, input, linear_weight, target, linear_bias)
    check_devices(op, input, linear_weight=linear_weight, target=target, linear_bias=linear_bias)
    product = product_of(op, input, linear_weight, linear_bias)
    check_softcap(op, softcap, statistics_of(input, product))
    width, kept = slices_of(input, linear_weight, target, linear_bias, product, save)
    return input, linear_weight, target, linear_bias, ignore_index, scale, softcap, entropy, product, width, kept


def linear_log_prob(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    entropy: bool = False,
    save: str = "auto",
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Log-probability of a class by a linear layer's outputs, and their entropy, without a tensor of their size.

    .. math:: z = x W^\top + b, \qquad \log p_y = \text{log\_prob}(z, y)

    with :func:`fastops.log_prob`'s formula and options: what DPO, GRPO and KL penalties need of a language model's
    head. How it is multiplied and rounded and what ``save`` means is :func:`fastops.linear_cross_entropy`'s.

    Args:
        input: hidden states, [*, features]. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels;
            other dtypes and devices the plain composition.
        linear_weight: :math:`W`, [classes, features], of ``input``'s dtype, or under autocast any.
        target: a class for each row, int64 or uint8, [*].
        linear_bias: :math:`b`, [classes].
        scale: of the logits, :math:`1 / T` for a temperature :math:`T`.
        softcap: what the logits are capped to by a tanh, greater than 0. None: they are not.
        ignore_index: rows with this target have log-probability and entropy 0 and gradient 0. Their hidden states must
            be finite, or the weight's gradient is not.
        entropy: the second result too.
        save: ``"auto"``, ``"logits"`` or ``"none"``: what is kept for the backward beside the inputs.

    Returns:
        The log-probabilities, [*], in float32, of float64 in float64; with ``entropy`` a pair of them and the
        entropies, in nats.

    Raises:
        IndexError: on the CPU, a target that is neither a class nor ``ignore_index``; of a compiled graph RuntimeError.
            On CUDA, and under transforms that cannot look at values, the row's results and gradient are NaN instead.
        RuntimeError: shapes, dtypes or ``softcap`` are wrong.
        TypeError: an argument of another type.
        ValueError: no such ``save``.
    """
    overridden = has_torch_function_variadic(input, linear_weight, target, linear_bias)
    if overridden or is_sharded(input) or is_sharded(linear_weight):
        options = {
            "scale": scale,
            "softcap": softcap,
            "ignore_index": ignore_index,
            "entropy": entropy,
            "save": save,
        }
        tensors = input, linear_weight, target
        if overridden:
            operands = (*tensors, linear_bias)
            return handle_torch_function(linear_log_prob, operands, *tensors, linear_bias=linear_bias, **options)  # type: ignore[arg-type]
        from .sharded_losses import linear_log_prob_of_dtensors

        return linear_log_prob_of_dtensors(*tensors, linear_bias, **options)  # type: ignore[arg-type,no-any-return]
    arguments = raw_arguments(input, linear_weight, target, linear_bias, scale, softcap, ignore_index, entropy, save)
    return (_with_entropy if entropy else _op).call(*arguments)
