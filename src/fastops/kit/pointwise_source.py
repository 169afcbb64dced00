"""The sources that are compiled for an elementwise op: C++ for the CPU, CUDA C++ for NVRTC; neither includes a header.

Both are called from cpp/kit/pointwise.cpp, which has walked the shapes already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from . import expression
from .expression import Node

# In the order of DType in cpp/core/dtype.h: the type in memory, its bytes, what it is computed in.
TYPES = (("f16", 2, "float"), ("bf16", 2, "float"), ("float", 4, "float"), ("double", 8, "double"))

# A CUDA kernel's variant is the sum of these.
STRIDED, VECTORS, WIDE = 1, 2, 4

_MAX_DIMS = 16


@cache
def device_headers() -> str:
    """The package's device headers, or the tree's in an editable install, as one text."""
    package = Path(__file__).parents[1] / "include" / "fastops" / "device"
    tree = Path(__file__).parents[3] / "cuda" / "device"
    folder = package if package.is_dir() else tree
    lines = [line for name in ("types", "vector") for line in (folder / f"{name}.cuh").read_text().splitlines()]
    return "\n".join(line for line in lines if not line.startswith(("#pragma once", "#include"))) + "\n"


def _function(qualifiers: str, arguments: Sequence[str], nodes: Sequence[Node], real: str) -> str:
    """``compute``: the expression, from one value an argument to a reference an output."""
    outputs = [f"kit_output_{k}" for k in range(len(nodes))]
    parameters = [f"{real} {name}" for name in arguments] + [f"{real}& {name}" for name in outputs]
    body = expression.emit_c(nodes, outputs, real)
    return f"{qualifiers} void compute({', '.join(parameters)}) {{\n{body}\n}}\n"


def cuda(kernel: str, tensors: Sequence[str], scalars: Sequence[str], nodes: Sequence[Node], dtypes: Sequence[int], variant: int) -> str:
    """One kernel.

    Args:
        kernel: its name.
        tensors, scalars: the names of the arguments.
        nodes: the outputs.
        dtypes: an index into ``TYPES`` for the outputs, then one for each tensor.
        variant: 0: every operand is one run of ``numel`` elements, of which a thread takes a group of 16 bytes, and
            those behind the last group are one a thread. ``STRIDED``: sizes and strides, in elements, of up to 16
            dimensions, the fastest first. With ``VECTORS`` those of dimension 0 count groups, and a stride 0 there
            repeats one element. ``WIDE``: 64-bit indices.
    """
    result, real = TYPES[dtypes[0]][0], TYPES[dtypes[0]][2]
    types = [result] * len(nodes) + [TYPES[k][0] for k in dtypes[1:]]
    outputs, count = len(nodes), len(types)
    group = 16 // max(TYPES[k][1] for k in dtypes)
    grouped = not variant & STRIDED or variant & VECTORS
    values = [f"static_cast<real>(scalars.at[{k}])" for k in range(len(scalars))]

    text = [device_headers(), expression.PRELUDE_CUDA, f"using real = {real};\n"]
    text += [_function("__device__ inline", [*tensors, *scalars], nodes, real)]
    text += [
        f"""
using namespace fastops::device;
constexpr int kThreads = 256, kOperands = {count}, kGroup = {group if grouped else 1};
struct Operands {{ void* at[kOperands]; }};
struct Index {{ int64 sizes[{_MAX_DIMS}], strides[kOperands][{_MAX_DIMS}]; }};
struct Scalars {{ double at[{max(len(scalars), 1)}]; }};

// `repeat`: the one element there stands for all N.
template <int N, class T>
__device__ inline void fetch(const void* data, int64 at, bool repeat, real (&x)[N]) {{
  const T* p = static_cast<const T*>(data) + at;
  if (repeat) {{
    const real one = static_cast<real>(widen(*p));
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = one;
  }} else {{
    accumulate_t<T> wide[N];
    load<true, N>(p, N, wide);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = static_cast<real>(wide[j]);
  }}
}}

template <int N>
__device__ inline void group(const Operands& data, const int64 (&at)[kOperands], const bool (&repeat)[kOperands],
                             const Scalars& scalars) {{
  real x[kOperands][N];
"""
    ]
    text += [f"  fetch<N, {types[k]}>(data.at[{k}], at[{k}], repeat[{k}], x[{k}]);\n" for k in range(outputs, count)]
    arguments = [f"x[{k}][j]" for k in range(outputs, count)] + values + [f"x[{k}][j]" for k in range(outputs)]
    text += [f"#pragma unroll\n  for (int j = 0; j < N; ++j) compute({', '.join(arguments)});\n"]
    text += [f"  store<true, N>(static_cast<{result}*>(data.at[{k}]) + at[{k}], N, x[{k}]);\n" for k in range(outputs)]
    text += ["}\n"]

    head = f'extern "C" __global__ void __launch_bounds__(kThreads) {kernel}'
    if not variant & STRIDED:
        text += [
            f"""
{head}(Operands data, int64 groups, int64 numel, Scalars scalars) {{
  const int64 g = static_cast<int64>(blockIdx.x) * kThreads + threadIdx.x;
  const bool whole = g < groups;
  const int64 first = whole ? g * kGroup : groups * kGroup + (g - groups);
  if (first >= numel) return;
  int64 at[kOperands];
  const bool repeat[kOperands] = {{}};
#pragma unroll
  for (int k = 0; k < kOperands; ++k) at[k] = first;
  if (whole)
    group<kGroup>(data, at, repeat, scalars);
  else
    group<1>(data, at, repeat, scalars);
}}
"""
        ]
    else:
        text += [
            f"""
{head}(Operands data, const __grid_constant__ Index index, int ndim, int64 groups, Scalars scalars) {{
  const int64 g = static_cast<int64>(blockIdx.x) * kThreads + threadIdx.x;
  if (g >= groups) return;
  int64 at[kOperands] = {{}};
  bool repeat[kOperands];
#pragma unroll
  for (int k = 0; k < kOperands; ++k) repeat[k] = kGroup > 1 && index.strides[k][0] == 0;
  using Place = {"unsigned long long" if variant & WIDE else "unsigned"};
  Place rest = static_cast<Place>(g);
  for (int d = 0; d < ndim; ++d) {{
    const Place size = static_cast<Place>(index.sizes[d]), next = rest / size;
    const int64 here = rest - next * size;
    rest = next;
#pragma unroll
    for (int k = 0; k < kOperands; ++k) at[k] += here * index.strides[k][d];
  }}
  group<kGroup>(data, at, repeat, scalars);
}}
"""
        ]
    return "".join(text)


# The half types, widened and rounded to nearest even without branches, so that loops over them vectorise.
CPP_TYPES = """
typedef long long int64;
template <class To, class From>
static inline To bits_of(From from) { To to; __builtin_memcpy(&to, &from, sizeof to); return to; }
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
template <class T> struct wide { typedef float type; };
template <> struct wide<double> { typedef double type; };
static inline float widen(float x) { return x; }
static inline double widen(double x) { return x; }
static inline float widen(bf16 x) { return bits_of<float>(static_cast<unsigned>(x.bits) << 16); }
static inline float widen(f16 x) {
  const unsigned magnitude = (x.bits & 0x7fffu) << 13, sign = (x.bits & 0x8000u) << 16;
  const unsigned finite = bits_of<unsigned>(bits_of<float>(magnitude) * 0x1p112f);  // the exponents' biases differ
  return bits_of<float>((magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite) | sign);
}
template <class T> static inline T narrow(typename wide<T>::type x) { return x; }
template <> inline bf16 narrow<bf16>(float x) {
  const unsigned u = bits_of<unsigned>(x);
  return {static_cast<unsigned short>(x != x ? 0x7fffu : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}
template <> inline f16 narrow<f16>(float x) {
  const unsigned u = bits_of<unsigned>(x), magnitude = u & 0x7fffffffu;
  const unsigned normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // 0.5's neighbours are as far apart as the subnormals.
  const unsigned subnormal = bits_of<unsigned>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000u;
  const unsigned finite = magnitude < 0x38800000u ? subnormal : normal;
  const unsigned all = magnitude > 0x7f800000u ? 0x7e00u : magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return {static_cast<unsigned short>(all | (u >> 16 & 0x8000u))};
}
"""


def cpp(tensors: Sequence[str], scalars: Sequence[str], nodes: Sequence[Node], dtypes: Sequence[int]) -> str:
    """``loop``: n elements of operands at one stride each, outputs first."""
    result, real = TYPES[dtypes[0]][0], TYPES[dtypes[0]][2]
    types = [result] * len(nodes) + [TYPES[k][0] for k in dtypes[1:]]
    outputs, count = len(nodes), len(types)
    names = [f"p{k}" for k in range(count)]

    text = [expression.PRELUDE_CPP, CPP_TYPES, f"typedef {real} real;\n"]
    text += [_function("static inline __attribute__((always_inline))", [*tensors, *scalars], nodes, real)]
    pointers = [f"{'real' if k < outputs else 'const real'}* __restrict {names[k]}" for k in range(count)]
    values = [f"s{k}" for k in range(len(scalars))]
    arguments = [f"{name}[i]" for name in names[outputs:]] + values + [f"{name}[i]" for name in names[:outputs]]
    text += [
        f"""
static void run({", ".join(pointers)}, int64 n, const double* scalars) {{
{"".join(f"  const real {value} = static_cast<real>(scalars[{k}]);" for k, value in enumerate(values))}
  for (int64 i = 0; i < n; ++i) compute({", ".join(arguments)});
}}

// Elements that lie as `run` takes them are not copied.
template <class T> static inline bool direct(int64) {{ return false; }}
template <> inline bool direct<real>(int64 stride) {{ return stride == 1; }}
template <class T>
static const real* fetch(const char* data, int64 stride, int64 at, int64 n, real* buffer) {{
  const T* p = reinterpret_cast<const T*>(data) + at * stride;
  if (direct<T>(stride)) return reinterpret_cast<const real*>(p);
  if (stride == 1)
    for (int64 i = 0; i < n; ++i) buffer[i] = static_cast<real>(widen(p[i]));
  else
    for (int64 i = 0; i < n; ++i) buffer[i] = static_cast<real>(widen(p[i * stride]));
  return buffer;
}}
template <class T>
static void put(char* data, int64 stride, int64 at, int64 n, const real* buffer) {{
  T* p = reinterpret_cast<T*>(data) + at * stride;
  if (direct<T>(stride)) return;
  if (stride == 1)
    for (int64 i = 0; i < n; ++i) p[i] = narrow<T>(buffer[i]);
  else
    for (int64 i = 0; i < n; ++i) p[i * stride] = narrow<T>(buffer[i]);
}}

extern "C" __attribute__((visibility("default")))
void loop(char* const* data, const int64* strides, int64 n, const double* scalars) {{
  const int64 block = 512;
  real buffers[{count}][block];
  for (int64 at = 0; at < n; at += block) {{
    const int64 m = n - at < block ? n - at : block;
"""
    ]
    for k in range(count):
        place = f"data[{k}], strides[{k}], at, m, buffers[{k}]"
        if k < outputs:
            spot = f"reinterpret_cast<real*>(data[{k}]) + at"
            text += [f"    real* {names[k]} = direct<{types[k]}>(strides[{k}]) ? {spot} : buffers[{k}];\n"]
        else:
            text += [f"    const real* {names[k]} = fetch<{types[k]}>({place});\n"]
    text += [f"    run({', '.join(names)}, m, scalars);\n"]
    text += [f"    put<{result}>(data[{k}], strides[{k}], at, m, buffers[{k}]);\n" for k in range(outputs)]
    text += ["  }\n}\n"]
    return "".join(text)
