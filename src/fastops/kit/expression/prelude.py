"""What stands before the source of an expression: the functions that the table's spellings call. No headers."""

from __future__ import annotations

import platform
import re

from .functions import FUNCTIONS
from .nodes import Apply, Node, postorder

# The C library's functions in the table, with how many arguments they take.
_LIBRARY = {
    called: function.arity
    for function in FUNCTIONS.values()
    for called in re.findall(r"(\w+)\{f\}", function.c)
    if called != "rsqrt"  # CUDA's only
}

# What a variable may not be called: the functions that its scope must still reach.
RESERVED = frozenset(_LIBRARY) | {f"{called}f" for called in _LIBRARY} | {"rsqrt", "rsqrtf"}

_HELPERS = """
template <class T> KIT_FUNCTION T kit_remainder(T m, T b) { return m != 0 && (b < 0) != (m < 0) ? m + b : m; }
template <class T> KIT_FUNCTION T kit_sign(T x) { return (x > 0) - (x < 0); }
template <class T> KIT_FUNCTION T kit_clamp(T x, T low, T high) {
  const T raised = x < low || low != low ? low : x;
  return raised > high || high != high ? high : raised;
}
"""

# NVRTC knows the functions by itself.
PRELUDE_CUDA = f"""
#define KIT_FUNCTION static __device__ __forceinline__
#define KIT_INF __int_as_float(0x7f800000)
#define KIT_NAN __int_as_float(0x7fc00000)
{_HELPERS}"""

# glibc has them for whole vectors, since these versions.
_IN_LIBMVEC = {
    (2, 22): {"cos", "exp", "log", "pow", "sin"},
    (2, 35): {
        *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "erf", "erfc", "exp2", "expm1", "hypot"),
        *("log10", "log1p", "log2", "sinh", "tan", "tanh"),
    },
}

_VECTORISED = re.compile(rf"\b({'|'.join(sorted(set().union(*_IN_LIBMVEC.values())))})\{{f\}}\(")


def calls_vector_library(node: Node) -> bool:
    """Whether one of its functions has a form for vectors, whose last bits are not the scalar's."""
    return any(isinstance(x, Apply) and bool(_VECTORISED.search(x.function.c)) for x in postorder([node]))


def _declaration(function: str, arity: int) -> str:
    versions = [version for version, names in _IN_LIBMVEC.items() if function in names]
    attributes = f"KIT_VECTOR_{versions[0][0]}_{versions[0][1]}" if versions else "KIT_SCALAR"
    return "\n".join(
        f'extern "C" {attributes} {real} {function}{f}({", ".join([real] * arity)}) noexcept;'
        for real, f in (("float", "f"), ("double", ""))
    )


# Declared here: <cmath> takes longer to read than the rest to compile, and names no vector functions.
PRELUDE_CPP = "\n".join(
    [
        """
#ifdef __linux__
#include <features.h>
#endif
#define KIT_FUNCTION static inline __attribute__((always_inline))
#define KIT_INF __builtin_inff()
#define KIT_NAN __builtin_nanf("")
#define KIT_SCALAR __attribute__((const))
#define KIT_VECTOR_2_22 KIT_SCALAR
#define KIT_VECTOR_2_35 KIT_SCALAR
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#undef KIT_VECTOR_2_22
#define KIT_VECTOR_2_22 __attribute__((const, simd("notinbranch")))
#if __GLIBC_PREREQ(2, 35)
#undef KIT_VECTOR_2_35
#define KIT_VECTOR_2_35 __attribute__((const, simd("notinbranch")))
#endif
#endif""",
        *(_declaration(function, arity) for function, arity in sorted(_LIBRARY.items())),
        "KIT_FUNCTION float rsqrtf(float x) { return 1 / sqrtf(x); }",
        "KIT_FUNCTION double rsqrt(double x) { return 1 / sqrt(x); }",
        _HELPERS,
    ]
)

# Of these the compiler knows no more than the type: GCC makes 1 / sqrt(x² + 1) of cos(atan(x)), and NaN is lost. Of the
# others it makes an instruction, and a root of pow(x, 0.5), which is right at -0 and infinity too.
_BUILTINS = {"ceil", "copysign", "fabs", "floor", "fmax", "fmin", "pow", "rint", "sqrt", "trunc"}
_NO_BUILTINS = sorted(set(_LIBRARY) - _BUILTINS)

# What the compiler gets beside its usual options. Fused multiply-adds would make results depend on the machine.
CPP_OPTIONS: tuple[str, ...] = (
    "-ffp-contract=off",
    *(f"-fno-builtin-{function}{f}" for function in _NO_BUILTINS for f in ("", "f")),
)
if platform.machine() == "x86_64" and platform.libc_ver()[0] == "glibc":
    CPP_OPTIONS += ("-lmvec",)
