"""The sources that are compiled for elementwise ops and reductions: what differs from op to op, before a file that does
not. Nothing is included: C++ for the CPU takes 0.1 to 0.2 seconds so, and NVRTC finds all it needs.
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

# The variants of elementwise kernels, as in sources/pointwise.cuh: one run of elements, any strides, any strides with
# neighbours moved together. Those of 64-bit indices besides are compiled when they are needed.
POINTWISE = (0, 1, 3)

# All variants of a reduction's kernels, as in sources/rows.h: rows, short rows, columns, parts of long ones.
REDUCTIONS = (0, 16, 8, 24, 1, 2, 18, 3, 12)

_TEMPLATES = """
template <int K>
struct type_of;
template <int... K>
struct Indices {};
"""


class Function(NamedTuple):
    """An expression of tensors and scalars under a name."""

    name: str
    tensors: tuple[str, ...]
    scalars: tuple[str, ...]
    nodes: tuple[Node, ...]

    def text(self, real: str, *, short: bool = False) -> str:
        """``name(in, scalars, out)``: arrays of one value an argument."""
        return (
            f"KIT_FUNCTION void {self.name}(const {real}* kit_in, const {real}* kit_scalars, {real}* kit_out) {{\n"
            + _constants(real, self.tensors, "kit_in[{}]")
            + _constants(real, self.scalars, "kit_scalars[{}]")
            + self.assigned(real, "kit_out[{}]", short=short)
            + "\n}\n"
        )

    @property
    def exact(self) -> bool:
        """Whether a vector's results are a scalar's, to the last bit."""
        return not any(map(expression.calls_vector_library, self.nodes))

    @property
    def plain(self) -> bool:
        """Whether it is its first tensor as it stands."""
        return [repr(node) for node in self.nodes] == [self.tensors[0]]

    def loop(self, real: str) -> str:
        """``name_all(in..., out..., n, scalars)`` over arrays that do not overlap, for the CPU to vectorise.

        ``n`` is a multiple of ``kVector``, and what is computed of an element does not depend on its place. There is
        one of it, unless it is exact: inlined, it might be vectorised differently from place to place.
        """
        once = "" if self.exact else "__attribute__((noinline)) "
        pointers = [f"const {real}* __restrict kit_in_{k}" for k in range(len(self.tensors))]
        pointers += [f"{real}* __restrict kit_out_{k}" for k in range(len(self.nodes))]
        return (
            f"static {once}void {self.name}_all({', '.join(pointers)}, int64 kit_n, const {real}* kit_scalars) {{\n"
            + _constants(real, self.scalars, "kit_scalars[{}]")
            + "for (int64 kit_i = 0; kit_i < kit_n / kVector * kVector; ++kit_i) {\n"
            + _constants(real, self.tensors, "kit_in_{}[kit_i]")
            + self.assigned(real, "kit_out_{}[kit_i]")
            + "\n}\n}\n"
        )

    def assigned(self, real: str, output: str, *, short: bool = False) -> str:
        """Statements that compute the nodes and assign each to ``output``, which has ``{}`` for its number."""
        return expression.emit_c(self.nodes, [output.format(k) for k in range(len(self.nodes))], real, short=short)


def _constants(real: str, names: Sequence[str], value: str) -> str:
    return "".join(f"const {real} {name} = {value.format(k)};\n" for k, name in enumerate(names))


def real_of(dtypes: Sequence[int]) -> str:
    """What is computed in: the results' type, float for the half types."""
    return "double" if _TYPES[dtypes[0]][0] == "double" else "float"


@cache
def text_of(name: str) -> str:
    """A file of ``sources/``."""
    return (Path(__file__).parent / "sources" / name).read_text("utf-8")


@cache
def _device_headers() -> str:
    """The package's device headers, or the tree's in an editable install, as one text."""
    package = Path(__file__).parents[1] / "include" / "fastops" / "device"
    tree = Path(__file__).parents[3] / "cuda" / "device"
    folder = package if package.is_dir() else tree
    lines = [line for name in ("types", "vector") for line in (folder / f"{name}.cuh").read_text("utf-8").splitlines()]
    return "\n".join(line for line in lines if not line.startswith(("#pragma once", "#include"))) + "\n"


def _operands(f: Function, dtypes: Sequence[int]) -> str:
    """What the files want to know: the type that is computed in, how many operands there are, and their types."""
    inputs, outputs = len(f.tensors), len(f.nodes)
    result, *of_inputs = (_TYPES[k] for k in dtypes)
    widest_input = max(size for _, size in of_inputs)
    counts = f"kInputs = {inputs}, kOutputs = {outputs}, kScalars = {len(f.scalars)}"
    sizes = f"kWidest = {max(widest_input, result[1])}, kWidestInput = {widest_input}"
    text = f"using real = {real_of(dtypes)};\n{_TEMPLATES}enum {{ {counts}, {sizes} }};\n"
    for k, (name, _) in enumerate([*[result] * outputs, *of_inputs]):
        text += f"template <>\nstruct type_of<{k}> {{\n  using type = {name};\n}};\n"
    text += f"using Outputs = Indices<{', '.join(map(str, range(outputs)))}>;\n"
    return text + f"using Inputs = Indices<{', '.join(str(outputs + k) for k in range(inputs))}>;\n"


def is_half(dtype: int) -> bool:
    return _TYPES[dtype][1] == 2


def cuda(
    files: Sequence[str], functions: Sequence[Function], dtypes: Sequence[int], variant: int, *, short: bool = False
) -> str:
    """A kernel ``kit_kernel``.

    Args:
        files: of ``sources/``, which make it of the functions. pointwise.cuh takes one, ``compute``; reduction.cuh
            ``compute_map`` of the tensors, ``compute_reduce`` of a and b, ``compute_post`` of a and n.
        functions: those.
        dtypes: indices into float16, bfloat16, float32, float64: the outputs', then each tensor's.
        variant: one of the file's own.
        short: with the short forms of division and exponential, for results of a half type.
    """
    return "".join(
        [
            _device_headers(),
            f"using namespace fastops::device;\n#define KIT_VARIANT {variant}\n",
            _operands(functions[0], dtypes),
            expression.PRELUDE_CUDA,
            text_of("short.cuh") if short else "",
            *(f.text(real_of(dtypes), short=short) for f in functions),
            *map(text_of, files),
        ]
    )


def cpp(files: Sequence[str], functions: Sequence[Function], dtypes: Sequence[int]) -> str:
    """The same for the CPU: a function ``loop``, for all variants. Reductions have each function in both forms."""
    real = real_of(dtypes)
    reduces = len(functions) > 1
    facts = ""
    if reduces:
        mapped, reduced, post = functions
        exact = f"kMapExact = {mapped.exact:d}, kReduceExact = {reduced.exact:d}"
        facts = f"enum {{ {exact}, kMapIsInput = {mapped.plain:d}, kPostIsSum = {post.plain:d} }};\n"
    return "".join(
        [
            text_of("types.h"),
            text_of("cpu.h"),
            _operands(functions[0], dtypes),
            expression.PRELUDE_CPP,
            facts,
            *(f.loop(real) for f in functions),
            *(f.text(real) for f in functions if reduces),
            *map(text_of, files),
        ]
    )
