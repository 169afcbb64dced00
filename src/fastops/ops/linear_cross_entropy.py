"""linear_cross_entropy: cross entropy of a linear layer's outputs, which are never whole in memory unless kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_tensors, type_error
from .._operator import Operator, wide
from ..families.kept_logits import run_backward, save
from ..families.likelihood import (
    MEAN,
    NONE,
    REDUCTIONS,
    check_classes,
    check_devices,
    check_weights,
    losses_of,
    rows_of,
)
from ..families.linear_operands import (
    Needs,
    check_operands,
    check_schedule,
    check_softcap,
    flat,
    forward_flops,
    gradient_flops,
    like_operands,
    matrix,
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
from ..families.row import HALVES
from ..families.shard import check_group, check_no_transform, shard_of
from ..families.slices import check_save
from ..sharding import is_sharded
from .cross_entropy import (
    check_dtype,
    check_loss,
    check_weight,
    cross_entropy,
    cross_entropy_backward_out,
    cross_entropy_backward_reference,
)
from .likelihood_partial import cross_entropy_merge, linear_parts
from .linear import linear
from .vocabulary_parallel import LinearCrossEntropyOfShard

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def linear_cross_entropy_reference(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    product: torch.dtype | None = None,
    width: int = 1,
    kept: int = 0,
) -> Four:
    """The op in plain PyTorch, of the whole logits: loss, lse, what mean divides by, and no logits."""
    logits = plain_logits(input, linear_weight, linear_bias)
    rows = rows_of("linear_cross_entropy", logits, target, ignore_index, scale, softcap)
    found = losses_of(rows, weight, reduction, label_smoothing, z_loss, dtype or input.dtype)
    return *found, input.new_empty(target.numel(), 0)


class _ForwardOptions(NamedTuple):
    """What follows the operands in the schema."""

    linear_bias: Tensor | None = None
    weight: Tensor | None = None
    reduction: int = MEAN
    ignore_index: int = -100
    label_smoothing: float = 0.0
    scale: float = 1.0
    softcap: float | None = None
    z_loss: float = 0.0
    dtype: torch.dtype | None = None
    product: torch.dtype | None = None
    width: int = 1
    kept: int = 0


def _forward(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> Four:
    o = _ForwardOptions(*given)
    classes, y = linear_weight.shape[0], flat(target)
    check_schedule("linear_cross_entropy", classes, o.width, o.kept)
    check_classes("linear_cross_entropy", y, o.ignore_index, classes)
    w = None if o.weight is None else wide(o.weight)
    of_part = (o.ignore_index, o.label_smoothing, o.scale, o.softcap, False)
    linear = Linear.of(input, linear_weight, o.linear_bias, o.product, o.width)
    parts, logits = linear_parts(linear, y, 0, classes, w, of_part, o.kept)
    of_loss = (o.reduction, o.ignore_index, o.label_smoothing, o.scale, o.softcap, o.z_loss)
    loss, lse, total = cross_entropy_merge(parts, y, classes, w, *of_loss, o.dtype or input.dtype)
    return shaped(loss, target) if o.reduction == NONE else loss, shaped(lse, target), total, logits


def _fake(input: Tensor, linear_weight: Tensor, target: Tensor, *given: Any) -> Four:
    o = _ForwardOptions(*given)
    statistics, operand = statistics_of(input, o.product), operand_dtype(input, o.product)
    return (
        input.new_empty(target.shape if o.reduction == NONE else (), dtype=o.dtype),
        input.new_empty(target.shape, dtype=statistics),
        input.new_empty(() if o.reduction == MEAN else 0, dtype=statistics),
        room_for(input.new_empty(0, dtype=operand), target.numel(), o.kept),
    )


def linear_cross_entropy_backward_reference(
    grad: Tensor,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    total: Tensor,
    logits: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    z_loss: float,
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
    of_rows = grad.reshape(-1) if reduction == NONE else grad
    z = matrix(z)
    options = (reduction, ignore_index, label_smoothing, scale, softcap, z_loss, first_class, classes)
    w = None if weight is None else wide(weight)
    d = cross_entropy_backward_reference(of_rows, None, z, target.reshape(-1), lse.reshape(-1), total, w, *options)
    needs = Needs(need_input, need_weight, need_bias)
    return of_linear(d, input, linear_weight, linear_bias, needs, input_dtype)


class _BackwardOptions(NamedTuple):
    """What follows what was saved of each row in the schema."""

    linear_bias: Tensor | None
    weight: Tensor | None
    reduction: int
    ignore_index: int
    label_smoothing: float
    scale: float
    softcap: float | None
    z_loss: float
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
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    total: Tensor,
    logits: Tensor,
    *given: Any,
    overwrite: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    o = _BackwardOptions(*given)
    y, lse, reduction = flat(target), lse.reshape(-1), o.reduction
    classes = linear_weight.shape[0] if o.classes is None else o.classes
    linear = Linear.of(input, linear_weight, o.linear_bias, o.product, o.width)
    w = None if o.weight is None else wide(o.weight)
    of_rows, scale_of = grad.reshape(-1) if reduction == NONE else grad, None
    if linear.x.dtype == torch.float16:
        size = _size(y, lse, w, o.label_smoothing, o.scale, o.z_loss, classes)
        of_rows, scale_of = _unscaled(of_rows.float(), total, y != o.ignore_index, size, reduction)
        reduction, total = NONE, lse.new_empty(0)
    of_loss = (w, reduction, o.ignore_index, o.label_smoothing, o.scale, o.softcap, o.z_loss)

    def write(z: Tensor, begin: int, out: Tensor) -> None:
        cross_entropy_backward_out(of_rows, z, y, lse, total, *of_loss, o.first_class + begin, classes, out)

    return gradients(input, linear, logits, overwrite, o.needs, write, scale_of, o.input_dtype)


def _size(
    target: Tensor,
    lse: Tensor,
    weight: Tensor | None,
    label_smoothing: float,
    scale: float,
    z_loss: float,
    classes: int,
) -> Tensor:
    """A bound of the gradient of a row's logits by an incoming gradient of 1; without weights one number."""
    if weight is None:
        return abs(scale) * (1 + 2 * abs(z_loss) * torch.cat([lse.abs(), lse.new_zeros(1)]).amax())
    y = torch.where((target >= 0) & (target < classes), target, 0)
    of_row = (1 - label_smoothing) * weight.float()[y].abs() + label_smoothing / classes * weight.float().abs().sum()
    return abs(scale) * (of_row + 2 * abs(z_loss) * lse.abs())


def _unscaled(grad: Tensor, total: Tensor, kept: Tensor, size: Tensor, reduction: int) -> tuple[Tensor, Scale]:
    """Incoming gradients with which those of the logits are about 1, and what they are to be multiplied by."""
    if reduction == MEAN:
        grad = torch.where((grad == 0) | ((total == 0) & ~kept.any()), 0, grad / total)
    factor = grad.abs() * size
    rows = torch.where(kept, factor, 0)
    of_rows = torch.where(factor == 0, 0, grad / factor).expand(kept.shape)
    return of_rows, Scale(rows, factor, True) if factor.dim() == 0 else Scale.of(rows)


def _fake_gradients(
    grad: Tensor,
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    lse: Tensor,
    total: Tensor,
    logits: Tensor,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    o = _BackwardOptions(*given)
    return like_operands(input, linear_weight, o.linear_bias, o.needs, o.input_dtype)


def _gradient_flops(
    grad: Any, input: Any, weight: Any, target: Any, lse: Any, total: Any, logits: Any, *given: Any
) -> int:
    return gradient_flops(input, weight, logits, _BackwardOptions(*given).needs)


_kernel = composed(_gradients)
_derivative = Operator(
    "linear_cross_entropy_backward",
    linear_cross_entropy_backward_reference,
    _fake_gradients,
    outputs=3,
    kernel=_kernel,
    flops=_gradient_flops,
)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    input, linear_weight, target, linear_bias, weight, *options, ctx.width, _ = inputs
    _, lse, total, logits = outputs
    ctx.options = (*options[:6], options[7])  # without the result's dtype
    save(ctx, input, linear_weight, target, lse, total, logits, linear_bias, weight)


def _backward(ctx: Any, grad: Tensor) -> Any:
    of_input, of_weight, of_bias = run_backward(ctx, _derivative, _kernel, grad)
    return of_input, of_weight, None, of_bias, *(None,) * 11


_op = Operator(
    "linear_cross_entropy",
    linear_cross_entropy_reference,
    _fake,
    save=_save,
    backward=_backward,
    kernel=composed(_forward),
    flops=forward_flops,
)


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    save: str = "auto",
    group: Any = None,
    classes: int | None = None,
) -> Tensor:
    r"""Cross entropy of a linear layer's outputs, without a tensor of their size: a language model's head and its loss.

    .. math:: z = x W^\top + b, \qquad \ell = \text{cross\_entropy}(z, y)

    with :func:`fastops.cross_entropy`'s formula and options. torch multiplies the matrices, a slice of the classes at a
    time, and one pass of ours reads or makes each slice of the logits. Sums that meet are added in float32: lse of the
    slices, the input's gradient, the loss. The weight's gradient is one product over all rows for each slice, rounded
    once; under autocast that of a float32 weight is never rounded to a half type. In float16 the gradient of the logits
    is not scaled before its products, so that a mean over many rows does not make it 0.

    Args:
        input: hidden states, [*, features]. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels;
            other dtypes and devices the plain composition.
        linear_weight: :math:`W`, [classes, features], of ``input``'s dtype, or under autocast any. Or [classes, d1,
            ..., features] for a loss of more dimensions, whose logits are whole.
        target: a class for each row, int64 or uint8, [*]; with more dimensions of the weight [*, d1, ...]. Or
            probabilities of the logits' shape [*, classes, d1, ...], for which the logits are whole too.
        linear_bias: :math:`b`, of the weight's shape without features, of ``input``'s dtype, or float32 beside a half
            type, to which it is rounded where that is multiplied; under autocast any.
        weight: a weight of each class, [classes], of ``input``'s dtype or float32. None: 1.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a loss of each row.
        ignore_index: rows with this target have loss 0 and gradient 0. Their hidden states must be finite, or the
            weight's gradient is not. None: -100, as torch's.
        label_smoothing: 0 to 1.
        scale: of the logits.
        softcap: what the logits are capped to by a tanh, greater than 0. None: they are not.
        z_loss: the factor of lse² in each row's loss; ``"mean"`` divides it by the weights' sum as it does the rest.
        dtype: the loss's. None: ``input``'s, under autocast float32. Only for float64 is more computed.
        save: what is kept for the backward beside the inputs. ``"logits"``: the logits, for 3 products in all; what
            is largest at a time are they and the gradients. ``"none"``: nothing of their size, for 4 products,
            because the backward multiplies them again; what is largest are the gradients. ``"auto"``: the logits, but
            of more than 8 GiB the first so many. They have ``input``'s dtype, or float32 on CPUs without instructions
            for that. On a GPU the last few of classes that are no whole vectors of 16 bytes are not kept. Shapes alone
            decide: ``python -m fastops.info --plan linear_cross_entropy`` shows it.
        group: a ``torch.distributed`` process group among which the classes are shared out: ``linear_weight`` and
            ``linear_bias`` have those of this process, in the order of ranks, while ``input``, ``target`` and
            ``weight`` are of all. One all-gather of four numbers a row; the backward adds up ``input``'s gradient,
            in float32, and no more: it must require a gradient on all processes or on none. The results are the same on
            all. Classes that do not fit together are a RuntimeError on the CPU and NaN on GPUs. No second derivatives,
            no ``torch.func``.
        classes: with a group, of all processes together; each has ``ceil(classes / processes)``, the last may have
            fewer. None: all have as many as this one.

    Returns:
        The loss, of no dimensions or, for ``"none"``, of ``target``'s shape. A mean over no rows is NaN; its gradient
        is 0.

    Raises:
        IndexError: on the CPU, a target that is neither a class nor ``ignore_index``; of a compiled graph RuntimeError.
            On CUDA, and under transforms that cannot look at values, the row's loss and gradient are NaN instead.
        RuntimeError: shapes, dtypes, ``label_smoothing`` or ``softcap`` are wrong; ``weight`` requires a gradient.
        TypeError: an argument of another type.
        ValueError: no such ``reduction`` or ``save``.

    The logits' memory is used again for their gradients in the backward, unless the graph is kept. Only the gradients
    that are asked for are computed: a frozen weight costs no product and no memory. The same as
    ``torch.nn.functional.linear_cross_entropy`` of torch 2.13, but for its ``options``, in whose place ``save`` is. A
    row's logits, by torch's product, may depend in their last bit on how many rows there are. Second derivatives and
    forward mode are the plain composition's, of the whole logits. DTensors are as in :func:`fastops.cross_entropy`;
    the gradients of hidden states by classes that are split, and of the weight by rows that are, are partial sums.
    """
    overridden = has_torch_function_variadic(input, linear_weight, target, linear_bias, weight)
    if overridden or is_sharded(input) or is_sharded(linear_weight):
        given = {
            "reduction": reduction,
            "ignore_index": -100 if ignore_index is None else ignore_index,
            "label_smoothing": label_smoothing,
            "scale": scale,
            "softcap": softcap,
            "z_loss": z_loss,
            "dtype": dtype,
            "save": save,
            "group": group,
            "classes": classes,
        }
        if overridden:
            return handle_torch_function(
                linear_cross_entropy,
                (input, linear_weight, target, linear_bias, weight),
                input,
                linear_weight,
                target,
                linear_bias=linear_bias,
                weight=weight,
                **given,  # type: ignore[arg-type]
            )
        from .sharded_losses import linear_cross_entropy_of_dtensors

        return linear_cross_entropy_of_dtensors(input, linear_weight, target, linear_bias, weight, **given)  # type: ignore[arg-type]
    check_save("linear_cross_entropy", save)
    check_group("linear_cross_entropy", group, classes)
    ignore_index = -100 if ignore_index is None else ignore_index
    if _needs_whole(input, linear_weight, target):
        if group is not None:
            raise RuntimeError(
                "[linear_cross_entropy] a group takes a weight of 2 dimensions and targets that are classes, got "
                f"{linear_weight.dim()} dimensions and {target.dtype}"
            )
        return _of_whole_logits(
            input,
            linear_weight,
            target,
            linear_bias,
            weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            scale=scale,
            softcap=softcap,
            z_loss=z_loss,
            dtype=dtype,
        )
    options = (ignore_index, reduction, label_smoothing, scale, softcap, z_loss, dtype, save)
    if group is None:
        return _op.call(*raw_arguments(input, linear_weight, target, linear_bias, weight, *options))
    check_no_transform("linear_cross_entropy")
    check_operands("linear_cross_entropy", input, linear_weight, target, linear_bias)
    shard = shard_of("linear_cross_entropy", linear_weight.shape[0], classes, group)
    arguments = raw_arguments(input, linear_weight, target, linear_bias, weight, *options, shard.classes)
    of_loss, (result, *schedule) = arguments[5:11], arguments[11:]
    loss: Tensor = LinearCrossEntropyOfShard.apply(
        *arguments[:5], of_loss, result or input.dtype, *schedule, shard, _derivative, _kernel
    )
    return loss


def _needs_whole(input: Tensor, linear_weight: Tensor, target: Tensor) -> bool:
    check_tensors("linear_cross_entropy", input=input, linear_weight=linear_weight, target=target)
    return linear_weight.dim() > 2 or target.is_floating_point()


def _of_whole_logits(
    input: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None, **options: Any
) -> Tensor:
    """Of a weight [classes, d1, ..., features], or of probabilities: the loss of logits [rows, classes, d1, ...]."""
    op, outputs = "linear_cross_entropy", weight.shape[:-1]
    if bias is not None and not isinstance(bias, Tensor):
        raise type_error(op, "linear_bias", "a Tensor or None", bias)
    if weight.dim() < 2 or not weight.shape[0]:
        raise RuntimeError(
            f"[{op}] linear_weight must have shape [classes, ..., features], classes not 0, got {list(weight.shape)}"
        )
    if not input.dim() or input.shape[-1] != weight.shape[-1]:
        expected = f"linear_weight's features {weight.shape[-1]}"
        raise RuntimeError(f"[{op}] input must end in {expected}, got shape {list(input.shape)}")
    if weight.dim() > 2 and input.dim() < 2:
        raise RuntimeError(
            f"[{op}] input must have rows beside a linear_weight of {weight.dim()} dimensions, got {list(input.shape)}"
        )
    if target.is_floating_point() and options["ignore_index"] >= 0:
        index = options["ignore_index"]
        raise RuntimeError(f"[{op}] ignore_index must be below 0 for probabilities, got {index}")
    if bias is not None and bias.shape != outputs:
        raise RuntimeError(f"[{op}] linear_bias must have shape {list(outputs)}, got {list(bias.shape)}")
    of_class = outputs if target.is_floating_point() else outputs[1:]
    if target.shape != (*input.shape[:-1], *of_class):
        expected = f"{[*input.shape[:-1], *of_class]}"
        raise RuntimeError(f"[{op}] target must have shape {expected}, got {list(target.shape)}")
    check_devices(op, input, linear_weight=weight, target=target, linear_bias=bias, weight=class_weight)
    product_of(op, input, weight, bias)
    flat_bias = None if bias is None else bias.reshape(-1)
    logits = linear(matrix(input), matrix(weight), flat_bias).unflatten(-1, outputs)
    rows = input.dim() - 1
    flat_target = target.flatten(0, rows - 1) if rows else target.unsqueeze(0)
    loss = cross_entropy(logits, flat_target, class_weight, **options)
    return loss.view((*input.shape[:-1], *outputs[1:])) if options["reduction"] == "none" else loss  # type: ignore[union-attr,return-value]


def raw_arguments(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    z_loss: float,
    dtype: torch.dtype | None,
    save: str,
    classes: int | None = None,
) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments."""
    op = "linear_cross_entropy"
    ignore_index = check_loss(op, ignore_index, reduction, label_smoothing, scale, softcap, z_loss)
    if dtype is not None:
        check_dtype(op, dtype)
    check_operands(op, input, linear_weight, target, linear_bias)
    if weight is not None:
        check_weight(op, weight, target)
    check_devices(op, input, linear_weight=linear_weight, target=target, linear_bias=linear_bias, weight=weight)
    product = product_of(op, input, linear_weight, linear_bias)
    if dtype == torch.float64 and input.dtype != dtype:  # of which more is computed
        product, input, linear_weight = None, input.to(dtype), linear_weight.to(dtype)
        linear_bias, weight = (None if x is None else x.to(dtype) for x in (linear_bias, weight))
    if weight is not None:
        half = product is not None and weight.dtype in HALVES
        check_weights(
            op, weight, linear_weight.shape[0] if classes is None else classes, weight.dtype if half else input.dtype
        )
    check_softcap(op, softcap, statistics_of(input, product))
    if dtype is None and product is not None:
        dtype = torch.float32
    width, kept = slices_of(input, linear_weight, target, linear_bias, product, save)
    options = (REDUCTIONS[reduction], ignore_index, label_smoothing, scale, softcap, z_loss)
    if dtype == input.dtype:
        dtype = None
    return input, linear_weight, target, linear_bias, weight, *options, dtype, product, width, kept
