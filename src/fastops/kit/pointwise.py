"""An elementwise function in every form: kernels for CPU and CUDA, the plain composition, the shape of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides

from .._promotion import promoted
from . import expression, source
from .expression import Node
from .program import Program, unique


class Pointwise(Program):
    """The outputs ``nodes`` of tensors and scalars of these names.

    Tensors broadcast. The outputs have the dtype that torch promotes all the tensors to. Half types are computed in
    float32 and rounded once.
    """

    def __init__(self, name: str, tensors: Sequence[str], scalars: Sequence[str], nodes: Sequence[Node], content: str):
        self.nodes = tuple(nodes)
        self._torch = expression.torch_function(self.nodes, (*tensors, *scalars))
        super().__init__(name, tensors, scalars, len(self.nodes), content)

    def reference(self, *inputs: Any) -> Any:
        tensors = inputs[: len(self.tensors)]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        dtype = promoted(tensors)
        outputs = tuple(_fresh(expression.cast(y, dtype), shape, tensors) for y in self._torch(*inputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def fake(self, *inputs: Any) -> Any:
        tensors = inputs[: len(self.tensors)]
        shape = torch.broadcast_shapes(*(t.shape for t in tensors))
        strides = _strides(shape, tensors)
        dtype = promoted(tensors)
        outputs = tuple(tensors[0].new_empty_strided(shape, strides, dtype=dtype) for _ in self.nodes)
        return outputs[0] if len(outputs) == 1 else outputs

    def cpp(self, dtypes: Sequence[int]) -> str:
        return source.cpp(["pointwise.h"], [self._function()], dtypes)

    def cuda(self, dtypes: Sequence[int], variant: int) -> str:
        # Not in reductions: of a sum that cancels, what is left is no longer far above the short forms' errors.
        short = source.is_half(dtypes[0])
        return source.cuda(["pointwise.cuh"], [self._function()], dtypes, variant, short=short)

    def _function(self) -> source.Function:
        return source.Function("compute", self.tensors, self.scalars, self.nodes)


def _strides(shape: torch.Size, tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Those of the result, as the kernels' host code has them (cpp/host/strides.h)."""
    # Ranks first: shapes of different ranks would compare sizes of different dimensions, and each is a guard.
    if all(t.dim() == len(shape) and t.shape == shape for t in tensors):
        for layout in (torch.contiguous_format, torch.channels_last)[: 2 if len(shape) == 4 else 1]:
            if all(t.is_contiguous(memory_format=layout) for t in tensors):
                return torch.empty(shape, device="meta", memory_format=layout).stride()
    return compute_elementwise_output_strides(*(t.expand(shape) for t in tensors))


def _fresh(y: Tensor, shape: torch.Size, tensors: Sequence[Tensor]) -> Tensor:
    """An output in full and of its own, where the expression is a constant or one of the inputs."""
    if y.dim() != len(shape) or y.shape != shape:
        return y.expand(shape).clone(memory_format=torch.contiguous_format)
    return y.clone() if any(y is t for t in tensors) else y


def pointwise(name: str, tensors: Sequence[str], scalars: Sequence[str], nodes: Sequence[Node]) -> Pointwise:
    """The program; one of the same name and content is made once."""
    function = source.Function("compute", tuple(tensors), tuple(scalars), tuple(nodes))
    content = f"{name}\n{function.text('double')}"
    return unique(content, lambda: Pointwise(name, tensors, scalars, nodes, content))
