"""What is registered with torch beside an op's kernels: its fake, and its reference where none of them fits."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor

from .capability import capabilities


def on_one_device(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """What the kernels check of real tensors, for meta tensors among them."""

    @functools.wraps(fake)
    def checked(*inputs: Any) -> Any:
        devices = {str(x.device) for x in inputs if isinstance(x, Tensor)}
        if len(devices) > 1:
            raise RuntimeError(f"[{name}] all tensors must be on one device, got {' and '.join(sorted(devices))}")
        return fake(*inputs)

    return checked


def announced(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference as a kernel: a GPU that none of ours fits gets it, but not silently."""

    def kernel(*inputs: Any) -> Any:
        for x in inputs:
            if isinstance(x, Tensor) and x.is_cuda and x.device.index not in _announced_gpus:
                _announce(x.device.index)
        return reference(*inputs)

    return kernel


_announced_gpus: set[int] = set()


def _announce(index: int) -> None:
    _announced_gpus.add(index)
    found = capabilities()
    gpu = next((gpu for gpu in found.gpus if gpu.index == index), None)
    if gpu is None or gpu.arch is None:
        reason = gpu.reason if gpu else found.no_gpu or "the NVIDIA driver does not show it"
        warnings.warn(f"[fastops] cuda:{index} runs plain PyTorch in place of our kernels: {reason}", stacklevel=2)
