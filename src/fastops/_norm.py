"""What the norms share: checks, the formulas in plain PyTorch, fakes, and how an operator is made of them.

The inputs of a norm's raw ops are one or two tensors of rows (input, residual), its affine parameters, ``dims``, how
many trailing dimensions it normalises over, and its numbers, in this order. That ``normalized_shape`` is the shape of
those dimensions is checked here and not in C++: torch takes 0.6 us to hand a list of sizes over, a fourth of a small
call. For the same reason numbers and flags are left out of a call where they are the schema's defaults: 0.2 us each.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ._arguments import type_error
from ._derivative import reach_of, unused_as_none
from ._operator import Operator, sum_of_rows, wide
from .sharding import Call, rows

Formula = Callable[..., Any]


def trailing_dims(op: str, input: Tensor, normalized_shape: Sequence[int]) -> int:
    """How many dimensions ``normalized_shape`` has, if they are the last of ``input``."""
    try:
        shape, dims = input.shape, len(normalized_shape)
        if dims == 1 and shape and shape[-1] == normalized_shape[0]:  # the usual, for less than a slice takes
            return 1
        if dims and shape[-dims:] == tuple(normalized_shape):
            return dims
    except (AttributeError, RuntimeError, TypeError):
        if not isinstance(input, Tensor):
            raise type_error(op, "input", "a Tensor", input) from None
        if input.is_nested:  # one without a shape
            return len(normalized_shape)
        raise type_error(op, "normalized_shape", "a sequence of int", normalized_shape) from None
    if not isinstance(input, Tensor):
        raise type_error(op, "input", "a Tensor", input)
    if isinstance(normalized_shape, Tensor):  # a weight in its place, whose numbers the next message would list
        raise type_error(op, "normalized_shape", "a sequence of int", normalized_shape)
    if not dims:
        raise RuntimeError(f"[{op}] normalized_shape must have at least 1 dimension, got []")
    raise RuntimeError(f"[{op}] input must end in normalized_shape {list(normalized_shape)}, got shape {list(shape)}")


_ABSENT: Any = object()  # of an op that has no residual; None is a wrong one


def check(
    op: str,
    input: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None = None,
    residual: Any = _ABSENT,
    complex_too: bool = False,
) -> None:
    """What the C++ edge checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    rows = {"input": input} if residual is _ABSENT else {"input": input, "residual": residual}
    for name, x in (*rows.items(), ("weight", weight), ("bias", bias)):
        if x is None and name not in rows:
            continue
        if not isinstance(x, Tensor):
            raise type_error(op, name, "a Tensor", x)
        complex_here = complex_too and (x is input or input.is_complex())
        if not (x.is_floating_point() or (complex_here and x.is_complex())):
            kinds = "floating point or complex" if complex_here else "floating point"
            raise RuntimeError(f"[{op}] {name} must be {kinds}, got {x.dtype}")
    if not 1 <= dims <= input.dim():
        raise RuntimeError(f"[{op}] dims must be 1 to input's {input.dim()}, got {dims}")
    shape = list(input.shape[-dims:])
    for name, x in (("weight", weight), ("bias", bias)):
        if x is not None and list(x.shape) != shape:
            raise RuntimeError(f"[{op}] {name} must have shape {shape}, got {list(x.shape)}")
    if residual is not _ABSENT and residual.shape != input.shape:
        raise RuntimeError(f"[{op}] residual must have input's shape {list(input.shape)}, got {list(residual.shape)}")


def computed_dtype(*tensors: Tensor | None) -> torch.dtype:
    """What a norm of these tensors is computed in: their promotion, float32 at least."""
    dtype = torch.float32
    for x in tensors:
        if x is not None:
            dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def _trailing(dims: int) -> tuple[int, ...]:
    return tuple(range(-dims, 0))


def _inverse_root(square: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    return (square.mean(dims, keepdim=True) + eps).rsqrt()


def _layer_statistics(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, ...]:
    """x - mean, the mean as two numbers, rounded and what rounding took away, and rstd."""
    count = math.prod(x.shape[-len(dims) :])  # torch.Size.numel() would make a symbolic size a constant
    mean = (x / max(count, 1)).sum(dims, keepdim=True)  # the sum itself may overflow
    shift = (x - mean).mean(dims, keepdim=True)
    centred = x - mean - shift
    return centred, mean, shift, _inverse_root(centred.square(), dims, eps)


def _saved(x: Tensor, dims: int, *statistics: Tensor) -> Tensor:
    """Statistics as the kernels save them: side by side, and zeros for rows without columns."""
    saved = torch.cat(statistics, -1).reshape(*x.shape[: x.dim() - dims], len(statistics))
    return torch.zeros_like(saved) if 0 in x.shape[-dims:] else saved


def layer_forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dims: int,
    eps: float,
    weight_offset: float,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Output, of the dtype of ``like``, and statistics: mean, shift and rstd."""
    computed = computed_dtype(x, like, weight, bias)
    centred, *statistics = _layer_statistics(x.to(computed), _trailing(dims), eps)
    out = centred * statistics[-1]
    if weight is not None:
        out = out * (wide(weight) + weight_offset)
    if bias is not None:
        out = out + bias
    return out.to(like.dtype).contiguous(), _saved(x, dims, *statistics)


def rms_forward(
    x: Tensor, weight: Tensor | None, dims: int, eps: float | None, weight_offset: float, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Output, of the dtype of ``like``, and rstd."""
    computed = computed_dtype(x, like, weight)
    values = x.to(computed)
    rstd = _inverse_root(values.square(), _trailing(dims), rms_eps(x, eps))
    out = values * rstd
    if weight is not None:
        out = out * (weight.to(computed) + weight_offset)
    return out.to(like.dtype).contiguous(), _saved(x, dims, rstd).squeeze(-1)


def rms_eps(x: Tensor, eps: float | None) -> float:
    return torch.finfo(wide(x).dtype).eps if eps is None else eps


def layer_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    x: Tensor,
    dims: int,
    weight: Tensor | None,
    bias: Tensor | None,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
    eps: float,
    weight_offset: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for input, weight and bias. The statistics are made again, so that this can be differentiated."""
    trailing = _trailing(dims)
    computed = computed_dtype(grad, x, weight, bias)
    centred, *_, rstd = _layer_statistics(x.to(computed), trailing, eps)
    g, h = grad.to(computed), centred * rstd
    grad_weight = grad_bias = grad_input = x.new_empty(0)
    if need_weight:
        grad_weight = sum_of_rows(g * h, dims).to(x.dtype if weight is None else weight.dtype)
    if need_bias:
        grad_bias = sum_of_rows(g, dims).to(x.dtype if bias is None else bias.dtype)
    if need_input:
        if weight is not None:
            g = g * (wide(weight) + weight_offset)
        mean_gh = (g * h).mean(trailing, keepdim=True)
        grad_input = _with(grad_sum, rstd * (g - g.mean(trailing, keepdim=True) - h * mean_gh), grad, x)
    return grad_input, grad_weight, grad_bias


def rms_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    x: Tensor,
    dims: int,
    weight: Tensor | None,
    need_input: bool,
    need_weight: bool,
    eps: float | None,
    weight_offset: float,
    rstd: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients for input and weight. ``rstd``, of sizes 1 where a row is: in place of what ``eps`` gives."""
    trailing = _trailing(dims)
    computed = computed_dtype(grad, x, weight)
    values = x.to(computed)
    if rstd is None:
        rstd = _inverse_root(values.square(), trailing, rms_eps(x, eps))
    g, h = grad.to(computed), values * rstd
    grad_weight = grad_input = x.new_empty(0)
    if need_weight:
        grad_weight = sum_of_rows(g * h, dims).to(x.dtype if weight is None else weight.dtype)
    if need_input:
        if weight is not None:
            g = g * (weight.to(computed) + weight_offset)
        grad_input = _with(grad_sum, rstd * (g - h * (g * h).mean(trailing, keepdim=True)), grad, x)
    return grad_input, grad_weight


def _with(grad_sum: Tensor | None, gradient: Tensor, grad: Tensor, x: Tensor) -> Tensor:
    """Of one dtype, that input's and residual's gradients fit in; autograd rounds it for each."""
    total = gradient if grad_sum is None else gradient + grad_sum
    return total.to(torch.promote_types(grad.dtype, x.dtype)).contiguous()


def fake_outputs(
    input: Tensor, residual: Tensor | None, parameters: Sequence[Tensor | None], dims: int, statistics: Any
) -> Any:
    """The output, with a residual the sum, and the statistics: of this shape for each row, if they are asked for."""
    outputs: tuple[Tensor, ...] = (input.new_empty(input.shape),)
    if residual is not None:
        outputs += (input.new_empty(input.shape, dtype=residual.dtype),)
    if statistics is not None:
        stat = computed_dtype(input, residual, *parameters)
        outputs += (input.new_empty((*input.shape[: input.dim() - dims], *statistics), dtype=stat),)
    return outputs if len(outputs) > 1 else outputs[0]


def fake_gradients(
    grad: Tensor, x: Tensor, dims: int, parameters: Sequence[Tensor | None], needs: Sequence[bool]
) -> tuple[Tensor, ...]:
    need_input, *need_parameters = needs
    rows = torch.promote_types(grad.dtype, x.dtype)
    return (
        x.new_empty(x.shape if need_input else 0, dtype=rows),
        *(
            x.new_empty(x.shape[x.dim() - dims :] if need else 0, dtype=x.dtype if like is None else like.dtype)
            for like, need in zip(parameters, need_parameters, strict=True)
        ),
    )


def _trailing_sizes(x: Tensor, dims: int) -> list[int]:
    sizes = [x.size(d) for d in _trailing(dims)]  # a nested tensor may have no shape
    return [int(size) if isinstance(size, Tensor) else size for size in sizes]  # torch.jit traces sizes as tensors


def with_offset(weight: Tensor | None, offset: float) -> Tensor | None:
    """The factor of torch's own norms, which have no offset. TorchScript reads this too."""
    if weight is None or offset == 0.0:
        return weight
    return weight + offset


def layer_native(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    dims: int = 1,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
) -> Tensor:
    """torch's own op."""
    return F.layer_norm(x, _trailing_sizes(x, dims), with_offset(weight, weight_offset), bias, eps)


def rms_native(
    x: Tensor,
    weight: Tensor | None = None,
    dims: int = 1,
    eps: float | None = None,
    weight_offset: float = 0.0,
) -> Tensor:
    """torch's own op."""
    if torch.onnx.is_in_onnx_export():  # one of torch's two exporters does not know its own rms_norm
        return rms_forward(x, weight, dims, eps, weight_offset, x)[0]
    return F.rms_norm(x, _trailing_sizes(x, dims), with_offset(weight, weight_offset), eps)


def norm_operator(
    name: str,
    reference: Formula,
    fake: Formula,
    backward_reference: Formula,
    fake_backward: Formula,
    native: Formula,
    *,
    residual: bool,
    parameters: int,
) -> Operator:
    """The operator of a norm with this many affine parameters, with or without a residual.

    It has three raw ops. ``name`` returns the output and, with a residual, the sum. ``name_forward``, which has
    ``reference``, returns the statistics behind them. ``name_backward`` takes the incoming gradients of the outputs,
    what was normalised, the statistics, the parameters, which gradients are needed, and the numbers. ``fake`` has one
    argument more, whether there are statistics. ``native`` is torch's own op for what is normalised.
    """
    lead = outputs = 2 if residual else 1
    end = lead + parameters  # where dims and the numbers begin
    every = (True,) * end  # needs_input_grad where dims and the numbers are the defaults and all else learns
    affine = ("weight", "bias")
    of_rows = rows(_rows_before, whole=affine)
    derivative = Operator(
        f"{name}_backward",
        backward_reference,
        fake_backward,
        outputs=1 + parameters,
        sharding=rows(_rows_behind, whole=affine, sums=range(1, 1 + parameters)),
    )
    forward = Operator(f"{name}_forward", reference, functools.partial(fake, True), outputs=3, sharding=of_rows)

    @functools.wraps(reference)
    def outputs_alone(*inputs: Any) -> Any:
        results = reference(*inputs)
        return results[:2] if residual else results[0]

    def by_torch(*inputs: Any) -> Any:
        if any(isinstance(x, Tensor) and x.dtype != inputs[0].dtype for x in inputs):  # of which torch has no kernel
            return outputs_alone(*inputs)
        if not residual:
            return native(*inputs)
        sum = inputs[0] + inputs[1]
        return native(sum, *inputs[2:]), sum

    def save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        if residual:
            unused_as_none(ctx)
        x, statistics = results[1] if residual else inputs[0], results[-1]
        needed = ctx.needs_input_grad
        if needed == every:  # the usual, for which nothing but tensors is kept
            ctx.save_for_backward(x, statistics, *inputs[lead:])
            return
        ctx.options = inputs[end:]
        if True in needed[: lead + 1]:  # a tensor of rows or the weight
            ctx.save_for_backward(x, statistics, *inputs[lead:end])
        elif True in needed:
            ctx.bias_dtype = inputs[end - 1].dtype

    def backward(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        needed = ctx.needs_input_grad
        if needed == every and grad is not None:
            if not residual:
                return derivative.call(grad, *ctx.saved_tensors)
            of_sum, *of_affine = derivative.call(grad, grad_sum, *ctx.saved_tensors)
            return of_sum, of_sum, *of_affine
        options = ctx.options if needed != every else ()
        need_rows, need_parameters = True in needed[:lead], needed[lead:end]
        if grad is None:  # the sum alone was used
            found: Any = (grad_sum, *(None,) * parameters)
        elif need_rows or need_parameters[0]:
            grads = (grad, grad_sum if need_rows else None) if residual else (grad,)
            found = derivative.call(*grads, *ctx.saved_tensors, need_rows, *need_parameters, *options[1:])
        else:  # the bias alone needs nothing of the forward
            computed = wide(grad).to(torch.promote_types(wide(grad).dtype, ctx.bias_dtype))
            found = None, None, sum_of_rows(computed, options[0] if options else 1).to(ctx.bias_dtype)
        given = (*found[:1] * lead, *found[1:], *(None,) * len(options))  # input and residual have one gradient
        return tuple([g if need else None for g, need in zip(given, needed, strict=True)])

    def batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        if any(isinstance(d, int) for d in in_dims[lead:]):
            return None  # one set of parameters an element
        rows = (
            x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip(inputs[:lead], in_dims[:lead], strict=True)
        )
        return *rows, *inputs[lead:]

    return Operator(
        name,
        outputs_alone,
        functools.partial(fake, False),
        forward=forward,
        save=save,
        backward=backward,
        outputs=outputs,
        reach=reach_of([range(end), range(lead)]) if residual else None,  # the sum is of input and residual alone
        native=by_torch,
        batch=batch,
        sharding=of_rows,
    )


def _rows_before(call: Call) -> int:
    dims: int = call["dims"]
    return len(call.first) - dims


def _rows_behind(call: Call) -> int:
    """As many dimensions as the statistics have; those of a layer norm are three numbers side by side."""
    shapes = call.shapes
    return len(shapes["rstd"]) if "rstd" in shapes else len(shapes["statistics"]) - 1
