"""Expressions through the C++ compiler, as a loop over arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from fastops.kit import compiler
from fastops.kit.expression import CPP_OPTIONS, PRELUDE_CPP, Node, emit_c

REAL = {torch.float32: "float", torch.float64: "double"}


def source(nodes: Sequence[Node], names: Sequence[str], dtype: torch.dtype) -> str:
    real = REAL[dtype]
    loads = "\n".join(f"const {real} {name} = inputs[{k}][i];" for k, name in enumerate(names))
    body = emit_c(nodes, [f"outputs[{k}][i]" for k in range(len(nodes))], real)
    head = f'extern "C" void run(long n, const {real}* const* inputs, {real}* const* __restrict outputs)'
    return f"{PRELUDE_CPP}\n{head} {{\nfor (long i = 0; i < n; ++i) {{\n{loads}\n{body}\n}}\n}}\n"


def evaluate_compiled(nodes: Sequence[Node], values: dict[str, Tensor]) -> list[Tensor]:
    """As ``evaluate``, of vectors of one length and dtype."""
    inputs = [x.contiguous() for x in values.values()]
    library = compiler.shared_library(source(nodes, list(values), inputs[0].dtype), name="test", options=CPP_OPTIONS)
    outputs = [torch.empty_like(inputs[0]) for _ in nodes]
    pointers = [(ctypes.c_void_p * len(x))(*(t.data_ptr() for t in x)) for x in (inputs, outputs)]
    library.run(ctypes.c_long(len(inputs[0])), *pointers)
    return outputs
