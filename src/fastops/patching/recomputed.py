"""A tensor that is computed again for the backward, in place of being kept for it.

The product behind a gated unit keeps the unit's result for the gradient of its weight, beside gate and up, which the
unit keeps. These give it again by one pass over memory, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_hooks_are_enabled = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]


class _Kept(NamedTuple):
    """A tensor and its version: of what goes through hooks autograd asks for none."""

    tensor: Tensor
    version: int

    @staticmethod
    def of(tensor: Tensor) -> _Kept:
        return _Kept(tensor.detach(), tensor._version)

    @staticmethod
    def of_module(tensor: Tensor, module: torch.nn.Module) -> _Kept:
        """A parameter as itself, as without hooks: what shards it takes its memory away and brings it back."""
        for p in module.parameters():
            if type(p) not in _PLAIN or p.data_ptr() != tensor.data_ptr():
                continue
            if (p.shape, p.stride()) == (tensor.shape, tensor.stride()):
                return _Kept(p, p._version)
        return _Kept.of(tensor)

    def get(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                "[patch] a tensor that the backward needs was changed in place: of shape "
                f"{list(self.tensor.shape)}, at version {self.tensor._version}, expected {self.version}"
            )
        return self.tensor.detach()


class _Again(NamedTuple):
    """What gives the tensor again, under the shape that was kept."""

    function: Callable[..., Tensor]
    inputs: tuple[_Kept, ...]
    shape: torch.Size


def recomputed(
    module: torch.nn.Module, result: Tensor, function: Callable[..., Tensor], *inputs: Tensor
) -> AbstractContextManager[None]:
    """Where ``module`` is called with ``result``, which is ``function(*inputs)``, autograd keeps ``inputs`` for it.

    It keeps ``result`` itself where others have a say in what is kept: hooks, such as a checkpoint's, torch.compile,
    transforms, and tensors that are not plain ones.
    """
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and result.requires_grad):
        return nullcontext()
    if any(type(x) not in _PLAIN for x in (result, *inputs)) or not result.is_contiguous():
        return nullcontext()
    if torch._C._are_functorch_transforms_active():
        return nullcontext()
    if _top_hooks(False) is not None or not _hooks_are_enabled():
        return nullcontext()
    return _hooked(module, result, function, inputs)


@contextmanager
def _hooked(
    module: torch.nn.Module, result: Tensor, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> Iterator[None]:
    kept, version = tuple(_Kept.of(x) for x in inputs), result._version
    whole = [result]  # autograd holds the hooks for as long as what they packed

    def pack(x: Tensor) -> _Kept | _Again:
        if _is_all_of(x, whole[0], version):
            return _Again(function, kept, x.shape)
        return _Kept.of_module(x, module)

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield
    finally:
        whole.clear()


def _is_all_of(x: Tensor, whole: Tensor, version: int) -> bool:
    """Whether it has the very numbers of a dense tensor as they were, perhaps under another shape."""
    if type(x) is not Tensor or (x.numel(), x.dtype, x._version) != (whole.numel(), whole.dtype, version):
        return False
    return x.is_contiguous() and x.data_ptr() == whole.data_ptr()


def _unpack(packed: _Kept | _Again) -> Tensor:
    if isinstance(packed, _Kept):
        return packed.get()
    with torch.no_grad():
        return packed.function(*(x.get() for x in packed.inputs)).view(packed.shape)
