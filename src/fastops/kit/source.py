"""The sources that are compiled for elementwise ops and reductions: what differs from op to op, before a file that does
not. Nothing is included: C++ for the CPU takes tens of milliseconds so, and NVRTC finds all it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from . import expression
from .expression import Node

# In the order of DType in cpp/core/dtype.h: the type in memory and its bytes.
_TYPES = (("f16", 2), ("bf16", 2), ("float", 4), ("double", 8))

# Variants of elementwise kernels, as in sources/pointwise.cuh.
STRIDED, VECTORS, WIDE = 1, 2, 4

# All variants of a reduction's kernels, as in cpp/kit/reduction.cpp: rows, short rows, columns, parts of long ones.
REDUCTIONS = (0, 16, 8, 24, 1, 2, 18, 3, 12)

_TEMPLATES = """
template <int K>
struct type_of;
template <int... K>
struct Indices {};
template <bool, class A, class>
struct choose {
  using type = A;
};
template <class A, class B>
struct choose<false, A, B> {
  using type = B;
};
"""


class Function(NamedTuple):
    """An expression of tensors and scalars under a name."""

    name: str
    tensors: tuple[str, ...]
    scalars: tuple[str, ...]
    nodes: tuple[Node, ...]

    def body(self, real: str) -> str:
        outputs = [f"kit_output_{k}" for k in range(len(self.nodes))]
        declared = "".join(f"{real} {output};\n" for output in outputs)
        return declared + expression.emit_c(self.nodes, outputs, real)

    def text(self, qualifiers: str, real: str) -> str:
        """``name(in, scalars, out)``: arrays of one value an argument."""
        values = "".join(f"const {real} {x} = kit_in[{k}];\n" for k, x in enumerate(self.tensors))
        values += "".join(f"const {real} {s} = kit_scalars[{k}];\n" for k, s in enumerate(self.scalars))
        results = "".join(f"kit_out[{k}] = kit_output_{k};\n" for k in range(len(self.nodes)))
        head = f"{qualifiers} void {self.name}(const {real}* kit_in, const {real}* kit_scalars, {real}* kit_out)"
        return f"{head} {{\n{values}{self.body(real)}\n{results}}}\n"

    def loop(self, real: str) -> str:
        """``name_all(in..., out..., n, scalars)`` over arrays that do not overlap, for the CPU to vectorise.

        ``n`` is a multiple of ``kVector``, and what is computed of an element does not depend on its place.
        """
        pointers = [f"const {real}* __restrict kit_in_{k}" for k in range(len(self.tensors))]
        pointers += [f"{real}* __restrict kit_out_{k}" for k in range(len(self.nodes))]
        values = "".join(f"const {real} {x} = kit_in_{k}[kit_i];\n" for k, x in enumerate(self.tensors))
        scalars = "".join(f"const {real} {s} = kit_scalars[{k}];\n" for k, s in enumerate(self.scalars))
        results = "".join(f"kit_out_{k}[kit_i] = kit_output_{k};\n" for k in range(len(self.nodes)))
        return (
            f"static void {self.name}_all({', '.join(pointers)}, int64 kit_n, const {real}* kit_scalars) {{\n{scalars}"
            "for (int64 kit_i = 0; kit_i < kit_n / kVector * kVector; ++kit_i) {\n"
            f"{values}{self.body(real)}\n{results}}}\n}}\n"
        )


def _real(dtype: int) -> str:
    return "double" if _TYPES[dtype][0] == "double" else "float"


@cache
def text_of(name: str) -> str:
    """A file of ``sources/``."""
    return (Path(__file__).parent / "sources" / name).read_text()


@cache
def _device_headers() -> str:
    """The package's device headers, or the tree's in an editable install, as one text."""
    package = Path(__file__).parents[1] / "include" / "fastops" / "device"
    tree = Path(__file__).parents[3] / "cuda" / "device"
    folder = package if package.is_dir() else tree
    lines = [line for name in ("types", "vector") for line in (folder / f"{name}.cuh").read_text().splitlines()]
    return "\n".join(line for line in lines if not line.startswith(("#pragma once", "#include"))) + "\n"


def _operands(dtypes: Sequence[int], inputs: int, outputs: int, scalars: int, real: str, more: str = "") -> str:
    """What the files want to know. ``dtypes``: the outputs', then each input's."""
    types = [_TYPES[dtypes[0]][0]] * outputs + [_TYPES[k][0] for k in dtypes[1 : 1 + inputs]]
    widest_input = max(_TYPES[k][1] for k in dtypes[1 : 1 + inputs])
    widest = max(widest_input, _TYPES[dtypes[0]][1])
    more += f", kWidest = {widest}, kWidestInput = {widest_input}"
    text = f"using real = {real};\n{_TEMPLATES}"
    text += f"enum {{ kInputs = {inputs}, kOutputs = {outputs}, kScalars = {scalars}{more} }};\n"
    text += "".join(f"template <>\nstruct type_of<{k}> {{\n  using type = {t};\n}};\n" for k, t in enumerate(types))
    text += f"using Outputs = Indices<{', '.join(map(str, range(outputs)))}>;\n"
    return text + f"using Inputs = Indices<{', '.join(str(outputs + k) for k in range(inputs))}>;\n"


def pointwise_cuda(f: Function, dtypes: Sequence[int], variant: int) -> str:
    """A kernel ``kit_kernel``.

    Args:
        f: called ``compute``.
        dtypes: indices into float16, bfloat16, float32, float64: the outputs', then each tensor's.
        variant: 0: every operand is one run of elements. ``STRIDED``: any strides; with ``VECTORS``, neighbours along
            the fastest dimension are moved together; ``WIDE``: 64-bit indices.
    """
    real = _real(dtypes[0])
    more = f", kVariant = {variant}"
    return "".join(
        [
            _device_headers(),
            "using fastops::device::f16;\nusing fastops::device::bf16;\n",
            _operands(dtypes, len(f.tensors), len(f.nodes), len(f.scalars), real, more),
            f"#define KIT_STRIDED {variant & STRIDED}\n",
            expression.PRELUDE_CUDA,
            f.text("__device__ inline", real),
            text_of("pointwise.cuh"),
        ]
    )


def pointwise_cpp(f: Function, dtypes: Sequence[int]) -> str:
    """The same for the CPU: a function ``loop``, for any strides."""
    real = _real(dtypes[0])
    return "".join(
        [
            text_of("types.h"),
            text_of("vector.h"),
            _operands(dtypes, len(f.tensors), len(f.nodes), len(f.scalars), real),
            expression.PRELUDE_CPP,
            f.loop(real),
            text_of("pointwise.h"),
        ]
    )


def reduction_cuda(parts: Sequence[Function], dtypes: Sequence[int], variant: int) -> str:
    """A kernel ``kit_kernel``.

    Args:
        parts: ``compute_map`` of the tensors, ``compute_reduce`` of a and b, ``compute_post`` of a and n.
        dtypes: the result's, then each tensor's.
        variant: see sources/reduction.cuh.
    """
    real = _real(dtypes[0])
    first = parts[0]
    inputs = len(first.tensors)
    return "".join(
        [
            _device_headers(),
            "using fastops::device::f16;\nusing fastops::device::bf16;\n",
            _operands(dtypes, inputs, 1, len(first.scalars), real, f", kVariant = {variant}"),
            expression.PRELUDE_CUDA,
            *(f.text("__device__ inline", real) for f in parts),
            text_of("reduction.cuh"),
        ]
    )


def reduction_cpp(parts: Sequence[Function], dtypes: Sequence[int]) -> str:
    """The same for the CPU: a function ``loop``, for all variants."""
    real = _real(dtypes[0])
    first = parts[0]
    return "".join(
        [
            text_of("types.h"),
            text_of("vector.h"),
            _operands(dtypes, len(first.tensors), 1, len(first.scalars), real),
            expression.PRELUDE_CPP,
            first.loop(real),
            *(f.text("static inline __attribute__((always_inline))", real) for f in parts[1:]),
            text_of("reduction.h"),
        ]
    )
