"""relu: max(x, 0)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._operator import Operator, elementwise

Stride = tuple[int, ...] | None  # of the output; None: contiguous


def relu_reference(input: Tensor) -> Tensor:
    if input.dtype is torch.bool or input.is_complex():  # fake tensors of torch.relu take them
        raise RuntimeError(f"[relu] input must be real numbers, got {input.dtype}")
    return torch.relu(input)


def relu_backward_reference(grad: Tensor, output: Tensor) -> Tensor:
    return torch.where(output <= 0, 0, grad)


def relu_mask_reference(input: Tensor) -> tuple[Tensor, Tensor]:
    output = relu_reference(input)
    kept = output.as_strided((output.numel(),), (1,)) != 0  # in the order of memory
    groups = F.pad(kept.to(torch.uint8), (0, -output.numel() % 8)).view(-1, 8)
    return output, (groups << _places(output)).sum(1, dtype=torch.uint8)


def relu_mask_backward_reference(grad: Tensor, mask: Tensor, stride: Stride = None) -> Tensor:
    bits = ((mask.unsqueeze(1) >> _places(mask)) & 1).reshape(-1)
    kept = bits[: grad.numel()].view(grad.shape) if stride is None else bits.as_strided(grad.shape, stride)
    return torch.where(kept.bool(), grad, 0)


def _places(like: Tensor) -> Tensor:
    return torch.arange(8, device=like.device, dtype=torch.uint8)


def _fake_backward(grad: Tensor, mask: Tensor, stride: Stride = None) -> Tensor:
    return grad.new_empty(grad.shape) if stride is None else grad.new_empty_strided(grad.shape, stride)


# Backward reads one bit an element: of a half type a sixteenth of what the output takes.
_mask_backward = Operator(
    "relu_mask_backward",
    relu_mask_backward_reference,
    _fake_backward,
)


def _save(ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> None:
    output, mask = outputs
    ctx.stride = None if output.is_contiguous() else output.stride()
    ctx.save_for_backward(mask)


def _backward(ctx: Any, grad: Tensor, *statistics: Any) -> Any:
    (mask,) = ctx.saved_tensors
    return _mask_backward.call(grad, mask, ctx.stride)


_mask = Operator(
    "relu_mask",
    relu_mask_reference,
    lambda input: (relu_reference(input), input.new_empty((input.numel() + 7) // 8, dtype=torch.uint8)),
    save=_save,
    backward=_backward,
)
# A batch of masks is no mask: transforms keep the output.
_op = elementwise("relu", relu_reference, relu_backward_reference, keeps="output", training=_mask)


def relu(input: Tensor) -> Tensor:
    r"""Elementwise rectified linear unit.

    .. math:: y = \max(x, 0), \qquad
              \frac{\partial L}{\partial x} = 0 \text{ where } x \le 0 \text{, else } \frac{\partial L}{\partial y}

    NaN stays NaN, and its gradient is passed on. One bit an element is kept for the backward, neither input nor output
    (under ``torch.func`` transforms the output).

    Args:
        input: any shape and strides. float16, bfloat16, float32 and float64 on CPU and CUDA run our kernels; other
            dtypes and devices the plain composition.

    Returns:
        A new tensor of ``input``'s shape and dtype.

    Same as :func:`torch.nn.functional.relu` without its ``inplace``; nothing of the caller's is ever overwritten.
    """
    if has_torch_function_unary(input):
        return handle_torch_function(relu, (input,), input)
    return _op.call(input)
