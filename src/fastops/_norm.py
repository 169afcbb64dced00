"""What the norms share: checks, the formulas in plain PyTorch, fakes, and how an operator is made of them.

A norm's inputs are one or two tensors of rows (input, residual), ``normalized_shape``, its affine parameters and its
numbers, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._operator import Operator, check_parameter, wide

Formula = Callable[..., tuple[Tensor, ...]]


def check(
    op: str,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    complex_too: bool = False,
) -> None:
    """What the C++ edge checks, for where it is not asked: the plain composition, meta tensors, tracing."""
    if not (input.is_floating_point() or (complex_too and input.is_complex())):
        kinds = "floating point or complex" if complex_too else "floating point"
        raise RuntimeError(f"[{op}] input must be {kinds}, got {input.dtype}")
    shape = list(normalized_shape)
    if not shape:
        raise RuntimeError(f"[{op}] normalized_shape must have at least 1 dimension, got []")
    if list(input.shape[max(input.dim() - len(shape), 0) :]) != shape:
        raise RuntimeError(f"[{op}] input must end in normalized_shape {shape}, got shape {list(input.shape)}")
    for name, parameter in (("weight", weight), ("bias", bias)):
        if parameter is not None:
            check_parameter(op, name, parameter, shape, input)
    if residual is not None:
        if residual.dtype != input.dtype:
            raise RuntimeError(f"[{op}] residual must have input's dtype {input.dtype}, got {residual.dtype}")
        if residual.shape != input.shape:
            raise RuntimeError(
                f"[{op}] residual must have input's shape {list(input.shape)}, got {list(residual.shape)}"
            )


def _trailing(normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(-len(normalized_shape), 0))


def _sum_of_rows(x: Tensor, normalized_shape: Sequence[int]) -> Tensor:
    rows = tuple(range(x.dim() - len(normalized_shape)))
    return x.sum(rows) if rows else x


def _inverse_root(square: Tensor, dims: tuple[int, ...], eps: float) -> Tensor:
    return (square.mean(dims, keepdim=True) + eps).rsqrt()


def _layer_statistics(x: Tensor, dims: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x - mean, the distance of the mean from the row's first element, and rstd."""
    first = x.detach()  # in no derivative: what is added is taken away again
    for d in dims:
        first = first.narrow(d, 0, min(1, x.shape[d]))
    centre = (x - first).mean(dims, keepdim=True)
    centred = x - first - centre
    return centred, centre, _inverse_root(centred.square(), dims, eps)


def layer_forward(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, centre and rstd."""
    dims = _trailing(normalized_shape)
    centred, centre, rstd = _layer_statistics(wide(x), dims, eps)
    out = centred * rstd
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(x.dtype), centre.squeeze(dims), rstd.squeeze(dims)


def rms_forward(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None, weight_offset: float
) -> tuple[Tensor, Tensor]:
    """Output and rstd."""
    dims = _trailing(normalized_shape)
    rstd = _rms(wide(x), dims, eps)
    out = wide(x) * rstd
    if weight is not None:
        out = out * (wide(weight) + weight_offset)
    return out.to(x.dtype), rstd.squeeze(dims)


def _rms(x: Tensor, dims: tuple[int, ...], eps: float | None) -> Tensor:
    return _inverse_root(x.square(), dims, torch.finfo(x.dtype).eps if eps is None else eps)


def layer_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients for input, weight and bias. The statistics are made again, so that this can be differentiated."""
    dims = _trailing(normalized_shape)
    centred, _, rstd = _layer_statistics(wide(x), dims, eps)
    g, h = wide(grad), centred * rstd
    grad_weight = grad_bias = grad_input = x.new_empty(0)
    if need_weight:
        grad_weight = _sum_of_rows(g * h, normalized_shape).to(x.dtype if weight is None else weight.dtype)
    if need_bias:
        grad_bias = _sum_of_rows(g, normalized_shape).to(x.dtype if bias is None else bias.dtype)
    if need_input:
        if weight is not None:
            g = g * weight
        mean_gh = (g * h).mean(dims, keepdim=True)
        grad_input = _with(grad_sum, rstd * (g - g.mean(dims, keepdim=True) - h * mean_gh)).to(x.dtype)
    return grad_input, grad_weight, grad_bias


def rms_backward(
    grad: Tensor,
    grad_sum: Tensor | None,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    weight_offset: float,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients for input and weight."""
    dims = _trailing(normalized_shape)
    rstd = _rms(wide(x), dims, eps)
    g, h = wide(grad), wide(x) * rstd
    grad_weight = grad_input = x.new_empty(0)
    if need_weight:
        grad_weight = _sum_of_rows(g * h, normalized_shape).to(x.dtype if weight is None else weight.dtype)
    if need_input:
        if weight is not None:
            g = g * (wide(weight) + weight_offset)
        grad_input = _with(grad_sum, rstd * (g - h * (g * h).mean(dims, keepdim=True))).to(x.dtype)
    return grad_input, grad_weight


def _with(grad_sum: Tensor | None, gradient: Tensor) -> Tensor:
    return gradient if grad_sum is None else gradient + wide(grad_sum)


def fake_outputs(input: Tensor, normalized_shape: Sequence[int], full: int, statistics: int) -> tuple[Tensor, ...]:
    """``full`` tensors of input's shape, then ``statistics`` of a number a row."""
    stat = torch.float64 if input.dtype == torch.float64 else torch.float32
    leading = input.shape[: input.dim() - len(normalized_shape)]
    return (
        *(input.new_empty(input.shape) for _ in range(full)),
        *(input.new_empty(leading, dtype=stat) for _ in range(statistics)),
    )


def fake_gradients(
    x: Tensor, normalized_shape: Sequence[int], parameters: Sequence[Tensor | None], needs: Sequence[bool]
) -> tuple[Tensor, ...]:
    need_input, *need_parameters = needs
    return (
        x.new_empty(x.shape if need_input else 0),
        *(
            x.new_empty(normalized_shape if need else 0, dtype=x.dtype if like is None else like.dtype)
            for like, need in zip(parameters, need_parameters, strict=True)
        ),
    )


def norm_operator(
    name: str,
    reference: Formula,
    fake: Formula,
    backward_reference: Formula,
    fake_backward: Formula,
    *,
    residual: bool,
    parameters: int,
    numbers: int,
) -> Operator:
    """The operator of a norm with this many affine parameters and numbers, with or without a residual.

    Its raw op returns the output, with a residual the sum, then the statistics; the raw backward takes the incoming
    gradients of those outputs, what was normalised, ``normalized_shape``, the statistics, the parameters, the numbers
    and which gradients are needed.
    """
    lead = outputs = 2 if residual else 1
    end = lead + 1 + parameters  # where the numbers begin
    no_parameters, no_numbers = (None,) * parameters, (None,) * numbers
    derivative = Operator(f"{name}_backward", backward_reference, fake_backward, outputs=1 + parameters)

    def save(ctx: Any, inputs: tuple[Any, ...], results: tuple[Tensor, ...]) -> None:
        ctx.normalized_shape, ctx.numbers = inputs[lead], inputs[end:]
        if residual and not torch.compiler.is_dynamo_compiling():  # Dynamo does not know it, and has zeros come in
            ctx.set_materialize_grads(False)
        if True in ctx.needs_input_grad[: lead + 2]:  # a tensor of rows or the weight
            ctx.save_for_backward(results[1] if residual else inputs[0], *results[outputs:], *inputs[lead + 1 : end])
        elif True in ctx.needs_input_grad:
            ctx.bias_dtype = inputs[end - 1].dtype

    def backward(ctx: Any, grad: Tensor | None, grad_sum: Tensor | None = None) -> Any:
        needs = ctx.needs_input_grad
        need_rows, need_parameters = True in needs[:lead], needs[lead + 1 : end]
        if grad is None:  # the sum alone was used
            found: Any = (grad_sum, *no_parameters)
        elif not (need_rows or need_parameters[0]):  # the bias alone needs nothing of the forward
            found = None, None, _sum_of_rows(wide(grad), ctx.normalized_shape).to(ctx.bias_dtype)
        else:
            grads = (grad, grad_sum if need_rows else None) if residual else (grad,)
            x, *saved = ctx.saved_tensors
            found = derivative(*grads, x, ctx.normalized_shape, *saved, *ctx.numbers, need_rows, *need_parameters)
        rows = found[:1] * lead  # input and residual have one gradient
        given = (*rows, None, *found[1:], *no_numbers)
        return tuple([g if need else None for g, need in zip(given, needs, strict=True)])

    def batch(size: int, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        if any(isinstance(d, int) for d in in_dims[lead:]):  # normalized_shape has a tuple there
            return None  # one set of parameters an element
        rows = (
            x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip(inputs[:lead], in_dims[:lead], strict=True)
        )
        return *rows, *inputs[lead:]

    return Operator(name, reference, fake, save=save, backward=backward, outputs=outputs, batch=batch)
