"""cross_entropy: the negative log-likelihood of classes, of logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._arguments import check_tensors, type_error
from .._autocast import casts_losses
from .._operator import Differentiable, Operator, wide, writing_operator
from ..families.likelihood import (
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    Triple,
    capped,
    check,
    check_devices,
    check_input,
    check_options,
    check_target_dtype,
    check_weights,
    losses_of,
    of_each_class,
    one_hot,
    rows_of,
    split_rows,
    statistics_dtype,
    weights_of,
    without_defaults,
)
from ..families.row import HALVES
from ..families.shard import check_group, check_no_transform, shard_of
from ..sharding import EMPTY, Call, Output, Split, is_sharded
from .vocabulary_parallel import CrossEntropyOfShard

_DEFAULTS = (None, MEAN, -100, 0.0, 1.0, None, 0.0, None)  # the schema's, from weight on


def class_dim(input: Tensor) -> int:
    return 1 if input.dim() > 1 else 0


def _check(input: Tensor, target: Tensor, weight: Tensor | None, dtype: torch.dtype | None = None) -> None:
    dim = class_dim(input)
    check("cross_entropy", input, target, dim)
    if weight is not None:
        check_weights("cross_entropy", weight, input.shape[dim], input.dtype)
    if dtype is not None:
        check_dtype("cross_entropy", dtype)


def check_dtype(op: str, dtype: Any) -> None:
    if not isinstance(dtype, torch.dtype):
        raise type_error(op, "dtype", "a torch.dtype or None", dtype)
    if not dtype.is_floating_point:
        raise RuntimeError(f"[{op}] dtype must be floating point, got {dtype}")


def cross_entropy_reference(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Triple:
    """The op in plain PyTorch: the loss, the logarithm of each row's sum of e^u, and what mean divides by."""
    _check(input, target, weight, dtype)
    rows = rows_of("cross_entropy", input.movedim(class_dim(input), -1), target, ignore_index, scale, softcap)
    return losses_of(rows, weight, reduction, label_smoothing, z_loss, dtype or input.dtype)


def cross_entropy_backward_reference(
    grad: Tensor,
    grad_lse: Tensor | None,
    input: Tensor,
    target: Tensor,
    lse: Tensor,
    total: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    first_class: int = 0,
    classes: int | None = None,
) -> Tensor:
    """Gradient for input. lse is made again where all classes are there, so that this can be differentiated."""
    dim = class_dim(input)
    whole = classes is None
    count = input.shape[dim] if classes is None else classes
    check("cross_entropy", input, target, dim)
    if weight is not None:
        check_weights("cross_entropy", weight, count, input.dtype)
    rows = rows_of("cross_entropy", input.movedim(dim, -1), target, ignore_index, scale, softcap, classes)
    kept, y, u, slope = rows
    w, row_weight, weight_sum = weights_of(weight, kept, y, u, count)
    p = torch.softmax(u, -1) if whole else torch.exp(u - lse.unsqueeze(-1))
    g = wide(grad).to(u.dtype)
    if reduction == MEAN:
        # 0 / 0 would be NaN in the derivatives of ignored rows, and beside the gradient of lse alone.
        g = g / torch.where(kept & ((total != 0) | (g != 0)), total, 1)
    smooth = of_each_class(label_smoothing, count, u)
    of_p = (1 - label_smoothing) * row_weight + smooth * weight_sum
    if z_loss:
        of_p = of_p + 2 * z_loss * (torch.logsumexp(u, -1) if whole else lse)
    du = of_p.unsqueeze(-1) * p - ((1 - label_smoothing) * row_weight).unsqueeze(-1) * one_hot(y, u, first_class)
    if label_smoothing:
        du = du - (smooth if w is None else smooth * w[first_class : first_class + u.shape[-1]])
    du = g.unsqueeze(-1) * du
    if grad_lse is not None:
        du = du + grad_lse.to(u.dtype).unsqueeze(-1) * p
    dx = torch.where(kept.unsqueeze(-1), du * slope, 0)
    return dx.to(input.dtype).contiguous().movedim(-1, dim)


def _fake(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Triple:
    _check(input, target, weight, dtype)
    statistics = statistics_dtype(input)
    return (
        input.new_empty(target.shape if reduction == NONE else (), dtype=dtype),
        input.new_empty(target.shape, dtype=statistics),
        input.new_empty(() if reduction == MEAN else 0, dtype=statistics),
    )


def _fake_backward(
    grad: Tensor, grad_lse: Tensor | None, input: Tensor, target: Tensor, lse: Tensor, total: Tensor, *options: Any
) -> Tensor:
    dim = class_dim(input)
    return input.new_empty(input.movedim(dim, -1).shape).movedim(-1, dim)


def _native(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Any:
    """torch's own op where it has all that is asked for."""
    if scale != 1.0 or softcap is not None or z_loss or (weight is not None and weight.dtype != input.dtype):
        options = (weight, reduction, ignore_index, label_smoothing, scale, softcap, z_loss, dtype)
        return cross_entropy_reference(input, target, *options)
    if dtype is not None and input.dtype in HALVES:
        input, weight = input.float(), None if weight is None else weight.float()
    check_target_dtype("cross_entropy", target)
    name = next(name for name, code in REDUCTIONS.items() if code == reduction)
    # torch's smoothing, and rows of more dimensions, take no bytes.
    loss = F.cross_entropy(
        input, target.long(), weight, ignore_index=ignore_index, reduction=name, label_smoothing=label_smoothing
    )
    return loss if dtype is None else loss.to(dtype)


def _rows_with(x: Tensor, d: int | None, size: int, at: int) -> Tensor:
    """With the batch of ``vmap`` in this place, where it is one more dimension of rows."""
    if d is not None:
        return x.movedim(d, at)
    x = x.unsqueeze(at)
    return x.expand(*x.shape[:at], size, *x.shape[at + 1 :])


def _place(input: Tensor, d: int | None) -> tuple[int, int]:
    """Where the batch goes in the logits and among the rows: behind the classes, but for samples that are one row."""
    return (0, 0) if input.dim() - (d is not None) == 1 else (2, 1)


def _vmap(op: Differentiable, info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    """One more dimension of rows, whose losses are added afterwards."""
    weight = inputs[2] if len(inputs) > 2 else None
    if weight is not None and in_dims[2] is not None:
        out = torch.vmap(cross_entropy_reference, in_dims)(*inputs)
        return out, (0, 0, 0)
    size, (of_input, of_rows) = info.batch_size, _place(inputs[0], in_dims[0])
    input = _rows_with(inputs[0], in_dims[0], size, of_input)
    target = _rows_with(inputs[1], in_dims[1], size, of_rows)
    options = [*inputs[2:], *_DEFAULTS[len(inputs) - 2 :]]
    reduction, ignore_index, result = options[1], options[2], options[7] or input.dtype
    options[1], options[7] = NONE, result if reduction == NONE else statistics_dtype(input)
    loss, lse, _ = op._twin(input, target, *options)
    if reduction == NONE:
        return (loss, lse, lse.new_empty(size, 0)), (of_rows, of_rows, 0)
    loss = loss.movedim(of_rows, 0).reshape(size, -1).sum(1)
    total = lse.new_empty(size, 0)
    if reduction == MEAN:
        classes = target.movedim(of_rows, 0).reshape(size, -1).long()
        each = (classes != ignore_index).to(lse.dtype)
        if weight is not None:  # by a class that is none nothing may be looked up; the row's loss is NaN
            is_class = (classes >= 0) & (classes < weight.shape[0])
            each = each * weight.to(lse.dtype)[torch.where(is_class, classes, 0)]
        total = each.sum(1)
        loss = loss / total
    return (loss.to(result), lse, total), (0, of_rows, 0)


def _vmap_backward(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
    weight = inputs[6] if len(inputs) > 6 else None
    if weight is not None and in_dims[6] is not None:
        return torch.vmap(cross_entropy_backward_reference, in_dims)(*inputs), 0
    size, (of_input, of_rows) = info.batch_size, _place(inputs[2], in_dims[2])
    reduction = inputs[7] if len(inputs) > 7 else MEAN
    input = _rows_with(inputs[2], in_dims[2], size, of_input)
    target, lse = (_rows_with(inputs[k], in_dims[k], size, of_rows) for k in (3, 4))
    grad, grad_lse, total = inputs[0], inputs[1], inputs[5]
    if grad_lse is not None:
        grad_lse = _rows_with(grad_lse, in_dims[1], size, of_rows)
    if reduction == NONE:
        grad = _rows_with(grad, in_dims[0], size, of_rows)
    else:
        grad = _rows_with(grad, in_dims[0], size, 0)
        if reduction == MEAN:
            grad = grad.to(total.dtype) / _rows_with(total, in_dims[5], size, 0)
        behind = target.dim() - of_rows - 1
        grad = grad.reshape(size, *(1,) * behind).expand(target.shape)
    out = _derivative._twin(grad, grad_lse, input, target, lse, lse.new_empty(0), weight, NONE, *inputs[8:])
    return out, of_input


def _sharding(call: Call) -> Split:
    """A mean is of all rows, and not split."""
    loss = {NONE: lambda rows: Output(rows), SUM: lambda rows: Output(sums=rows)}.get(call["reduction"])
    split = split_rows(
        call, _class_dim(call), ("target",), lambda rows, _: [loss(rows) if loss else EMPTY, Output(rows), EMPTY]
    )
    return split if loss else split._replace(free=[])


def _sharding_backward(call: Call) -> Split:
    of_rows = ("grad_lse", "target", "lse", *(("grad",) if call["reduction"] == NONE else ()))
    return split_rows(call, _class_dim(call), of_rows, lambda _, logits: [Output(logits)])


def _class_dim(call: Call) -> int:
    return 1 if len(call.shapes["input"]) > 1 else 0


_derivative = Operator(
    "cross_entropy_backward",
    cross_entropy_backward_reference,
    _fake_backward,
    vmap=_vmap_backward,
    sharding=_sharding_backward,
)


# The gradient of logits that some classes have, where it is told to be: that may be where the logits are.
cross_entropy_backward_out = writing_operator(
    "cross_entropy_backward_out", lambda grad, *inputs: cross_entropy_backward_reference(grad, None, *inputs)
)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    _, lse, total = outputs
    ctx.count, ctx.options = len(inputs), inputs[3:9]
    ctx.save_for_backward(*inputs[:2], lse, total, *inputs[2:3])


def _backward(ctx: Any, grad: Tensor, grad_lse: Tensor | None = None) -> Any:
    gradient = _derivative.call(grad, grad_lse, *ctx.saved_tensors, *ctx.options)
    return (gradient, *(None,) * (ctx.count - 1))


_op: Operator = Operator(
    "cross_entropy",
    cross_entropy_reference,
    _fake,
    save=_save,
    backward=_backward,
    native=_native,
    vmap=lambda *batch: _vmap(_op, *batch),
    sharding=_sharding,
)
# Of the same raw op two outputs are differentiable here.
_with_lse: Differentiable = Differentiable(
    "cross_entropy",
    _op.raw,
    cross_entropy_reference,
    outputs=2,
    save=_save,
    backward=_backward,
    vmap=lambda *batch: _vmap(_with_lse, *batch),
)


def raw_arguments(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    z_loss: float,
    dtype: torch.dtype | None,
) -> tuple[Any, ...]:
    """What the raw op gets of the public function's arguments, without what the schema has as default."""
    ignore_index = check_loss("cross_entropy", ignore_index, reduction, label_smoothing, scale, softcap, z_loss)
    if not (isinstance(input, Tensor) and isinstance(target, Tensor)):
        check_tensors("cross_entropy", input=input, target=target)
    if weight is not None:
        check_weight("cross_entropy", weight, target)
    as_is = label_smoothing == z_loss == 0.0 and scale == 1.0 and softcap is None
    if weight is not None and weight.dtype in HALVES and casts_losses(input):
        weight = weight.float()
    if dtype is not None:
        input, weight, dtype = _of_dtype(input, weight, dtype)
    elif casts_losses(input) and input.dtype in HALVES:
        dtype = torch.float32
    elif as_is and weight is None and reduction == "mean" and ignore_index == -100:
        return input, target  # the usual, in less time than the loop over defaults takes
    options = (weight, REDUCTIONS[reduction], ignore_index, label_smoothing, scale, softcap, z_loss, dtype)
    return input, target, *without_defaults(options, _DEFAULTS)


def check_loss(
    op: str,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    scale: float,
    softcap: float | None,
    z_loss: float,
) -> int:
    """``ignore_index`` as an integer; the other options have their types and ranges."""
    usual = type(label_smoothing) is type(scale) is type(z_loss) is float and type(ignore_index) is int
    if not usual or softcap is not None:
        numbers = {"label_smoothing": label_smoothing, "scale": scale, "z_loss": z_loss}
        ignore_index = check_options(op, ignore_index, softcap, **numbers)
    if not 0 <= label_smoothing <= 1:
        raise RuntimeError(f"[{op}] label_smoothing must be 0 to 1, got {label_smoothing}")
    if not isinstance(reduction, str):
        raise type_error(op, "reduction", "a str", reduction)
    if reduction not in REDUCTIONS:
        raise ValueError(f"[{op}] reduction must be 'none', 'mean' or 'sum', got {reduction!r}")
    return ignore_index


def check_weight(op: str, weight: Any, target: Tensor) -> None:
    """As torch, which has no derivative by the weights of classes and does not ignore that one was asked for."""
    if not isinstance(weight, Tensor):
        raise type_error(op, "weight", "a Tensor or None", weight)
    if weight.requires_grad and torch.is_grad_enabled() and not target.is_floating_point():
        raise RuntimeError(f"[{op}] weight must not require a gradient: as in torch it has none")


def _of_dtype(input: Tensor, weight: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None, Any]:
    """The loss is rounded to its dtype at the end; only for float64 is more computed, of converted copies."""
    check_dtype("cross_entropy", dtype)
    if dtype == torch.float64 and input.dtype != dtype:
        input, weight = input.to(dtype), None if weight is None else weight.to(dtype)
    return input, weight, None if input.dtype == dtype else dtype


def of_probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Loss and lse where the target is a probability of each class, in plain PyTorch."""
    if target.dim() != input.dim():
        check_target_dtype("cross_entropy", target)
    if target.shape != input.shape:
        raise RuntimeError(
            f"[cross_entropy] target must have input's shape {list(input.shape)}, got {list(target.shape)}"
        )
    if ignore_index >= 0:
        raise RuntimeError(f"[cross_entropy] ignore_index must be below 0 for probabilities, got {ignore_index}")
    dim = class_dim(input)
    check_input("cross_entropy", input)
    if weight is not None:
        check_weights("cross_entropy", weight, input.shape[dim], input.dtype)
    u, _ = capped(wide(input.movedim(dim, -1)), scale, softcap)
    q = target.movedim(dim, -1).to(u.dtype)
    if label_smoothing:
        q = q * (1 - label_smoothing) + of_each_class(label_smoothing, u.shape[-1], u)
    terms, lse = torch.log_softmax(u, -1) * q, torch.logsumexp(u, -1)
    loss = -(terms if weight is None else terms * weight.to(u.dtype)).sum(-1)
    if z_loss:
        loss = loss + z_loss * lse.square()
    if reduction != NONE:
        loss = loss.mean() if reduction == MEAN else loss.sum()
    return loss.to(dtype or input.dtype), lse


def _of_shard(arguments: tuple[Any, ...], classes: int | None, group: Any) -> tuple[Tensor, Tensor]:
    input, target, *given = arguments
    given += _DEFAULTS[len(given) :]
    weight, *options, dtype = given
    dim = class_dim(input)
    check("cross_entropy", input, target, dim)
    check_no_transform("cross_entropy")
    check_devices("cross_entropy", input, target=target, weight=weight)
    shard = shard_of("cross_entropy", input.shape[dim], classes, group)
    if weight is not None:
        check_weights("cross_entropy", weight, shard.classes, input.dtype)
    loss, lse, _ = CrossEntropyOfShard.apply(input, target, weight, tuple(options), dtype or input.dtype, shard)
    return loss, lse


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
    dtype: torch.dtype | None = None,
    return_lse: bool = False,
    group: Any = None,
    classes: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Negative log-likelihood of the target classes under the softmax of the logits.

    Of a row with logits :math:`x` of :math:`V` classes and the target :math:`y`, with :math:`u = s x`, or
    :math:`u = c \tanh(s x / c)` with a softcap :math:`c`:

    .. math:: \mathrm{lse} = \log \sum_j e^{u_j}, \qquad
              \ell = (1 - \varepsilon)\,w_y (\mathrm{lse} - u_y)
              + \frac{\varepsilon}{V} \sum_j w_j (\mathrm{lse} - u_j) + \zeta\,\mathrm{lse}^2

    .. math:: \frac{\partial \ell}{\partial u_j} = \Bigl((1 - \varepsilon)\,w_y + \frac{\varepsilon}{V} \sum_k w_k
              + 2 \zeta\,\mathrm{lse}\Bigr) p_j - (1 - \varepsilon)\,w_y [j = y] - \frac{\varepsilon}{V} w_j,
              \qquad p_j = e^{u_j - \mathrm{lse}}

    ``"mean"`` divides the sum of the rows by that of their :math:`w_y`, for probabilities by their number. Of the half
    types all is computed in float32 and rounded once; our kernels add up rows in float64. A row's results depend on
    nothing but the row.

    Args:
        input: logits, any strides: [V], [N, V] or [N, V, d1, ...]; no copy is made of [B, S, V] as ``transpose(1, 2)``.
            float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other dtypes and devices the
            plain composition.
        target: a class for each row, int64 or uint8, of ``input``'s shape without its classes. Or probabilities, of
            ``input``'s shape and floating point, for which the plain composition runs; they are differentiated too.
        weight: :math:`w`, [V], of ``input``'s dtype or float32. None: 1.
        ignore_index: rows with this target have loss 0, lse 0 and gradient exactly 0, whatever they hold (in torch the
            gradient is NaN if they hold NaN or infinity). Probabilities have no such rows.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for a loss of each row.
        label_smoothing: :math:`\varepsilon`, 0 to 1.
        scale: :math:`s`; of logits :math:`1 / T` for a temperature :math:`T`.
        softcap: :math:`c`, greater than 0. None: the logits are not capped.
        z_loss: :math:`\zeta`. Its term is not weighted by :math:`w`; ``"mean"`` divides it as it does the others.
        dtype: the loss's. None: ``input``'s. For float32 of a half type no converted copy is made.
        return_lse: the second result too.
        group: a ``torch.distributed`` process group among which the classes are shared out: ``input`` has those of
            this process, in the order of ranks, while ``target`` and ``weight`` are of all. One all-gather of four
            numbers a row, none in the backward; the results are the same on all processes. Classes that do not fit
            together are a RuntimeError on the CPU and NaN on GPUs. No second derivatives, no ``torch.func``.
        classes: with a group, of all processes together; each has ``ceil(classes / processes)``, the last may have
            fewer. None: all have as many as this one.

    Returns:
        The loss, of no dimensions or, for ``"none"``, of ``target``'s shape. With ``return_lse`` a pair of the loss and
        lse, of ``target``'s shape (``input``'s without classes) in float32, of float64 in float64; it is
        differentiable, and 0 for ignored rows. A mean over no rows is NaN, as torch's; its gradient is 0.

    Raises:
        IndexError: on the CPU, a target that is neither a class nor ``ignore_index``; of a compiled graph RuntimeError.
            On CUDA, and under transforms that cannot look at values, the row's loss and gradient are NaN instead, and
            nothing waits for the GPU.
        RuntimeError: shapes, dtypes, ``label_smoothing`` or ``softcap`` are wrong; ``weight`` requires a gradient;
            ``ignore_index`` is a class while targets are probabilities.
        TypeError: an argument of another type.
        ValueError: no such ``reduction``.

    Gradients have ``input``'s dtype. What is kept for them beside ``input`` and ``target`` is lse, rounded to float32:
    float32 gradients of logits far from 0 have errors of :math:`|\mathrm{lse}| \cdot 2^{-24} p`. Without ``scale``,
    ``softcap``, ``z_loss``, ``dtype`` and ``return_lse`` the same as :func:`torch.nn.functional.cross_entropy`; under
    autocast it likewise computes in and returns float32, unless ``dtype`` says otherwise. Of DTensors, classes that are
    split along one mesh dimension are its group's, and rows may be split along the others: losses of rows are placed as
    the rows, a sum or mean of split rows is a partial sum, of all rows; a plain ``target`` is that of all rows.

    The z-loss is that of Chowdhery et al. 2022, arXiv:2204.02311, label smoothing that of Szegedy et al. 2016,
    arXiv:1512.00567.
    """
    overridden = has_torch_function_variadic(input, target, weight)
    if overridden or is_sharded(input):
        options = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "scale": scale,
            "softcap": softcap,
            "z_loss": z_loss,
            "dtype": dtype,
            "return_lse": return_lse,
            "group": group,
            "classes": classes,
        }
        if overridden:
            return handle_torch_function(cross_entropy, (input, target, weight), input, target, weight, **options)
        if not (isinstance(target, Tensor) and target.is_floating_point()):
            from .sharded_losses import cross_entropy_of_dtensors

            return cross_entropy_of_dtensors(input, target, weight, **options)  # type: ignore[arg-type,no-any-return]
    if return_lse is not False and return_lse is not True:
        raise type_error("cross_entropy", "return_lse", "a bool", return_lse)
    if group is not None or classes is not None:
        check_group("cross_entropy", group, classes)
    arguments = raw_arguments(
        input, target, weight, ignore_index, reduction, label_smoothing, scale, softcap, z_loss, dtype
    )
    if group is not None:
        pair = _of_shard(arguments, classes, group)
        return pair if return_lse else pair[0]
    if target.is_floating_point():
        pair = of_probabilities(*arguments)
        return pair if return_lse else pair[0]
    return (_with_lse if return_lse else _op).call(*arguments)
