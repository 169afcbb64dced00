"""Tensors whose elements do not lie in memory of their own, where a kernel would look for them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor


def special(tensor: Tensor) -> str:
    """What a tensor is that is not dense; empty for others."""
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout}"
    return "a nested one" if tensor.is_nested else "a quantized one" if tensor.is_quantized else ""


def without_memory(tensor: Tensor) -> str:
    """Why a dense tensor has no address; empty where it has one, or no elements."""
    if is_functorch_wrapped_tensor(tensor):
        return "one of torch.func's: wrap the kernel by kit.op"
    try:
        if tensor.data_ptr() or not tensor.numel():
            return ""
    except RuntimeError:
        return "one without storage"
    if tensor._is_zerotensor():
        return "zeros that have none, as torch._efficientzerotensor makes them: call .clone()"
    return "one whose storage is empty"
