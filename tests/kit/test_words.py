"""Every word that a signature has for a type, by kernels that index, as C++ for the CPU and as CUDA."""

from __future__ import annotations

import pytest
import torch
from common import needs_compiler, needs_nvrtc

from fastops.kit import CompileError, cpp_op, cuda_kernel
from fastops.kit.signature import _ELEMENTS

# The words that are types in C++ too, and what a kernel may write for the others.
SPELLED = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "half": "fastops::float16",
    "float16": "fastops::float16",
    "bfloat16": "fastops::bfloat16",
}
WORDS = [(word, element.dtype) for element in _ELEMENTS for word in element.words]
# Of 64 bits there are two types; each is taken for the other.
LONG = {
    torch.int64: ("int64_t", "long", "long long", "signed long int"),
    torch.uint64: ("uint64_t", "unsigned long", "unsigned long long", "size_t"),
}
PAIRS = [(word, dtype, SPELLED.get(word, word)) for word, dtype in WORDS]
PAIRS += [(word, dtype, other) for word, dtype in WORDS for other in LONG.get(dtype, ())]

BODY = "for (int64_t i = 0; i < n; ++i) {{ y[i] = x[n - 1 - i]; if (i == 1) y[i] = one; }}"


def values(dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.tensor([True, False, False, True])
    if dtype.is_floating_point:
        return torch.tensor([0.5, -1.25, 3.0, 100.0], dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.tensor([info.max, info.min, 3, 4], dtype=dtype)


@needs_compiler
@pytest.mark.parametrize(("word", "dtype", "spelled"), PAIRS, ids=str)
def test_in_cpp(word: str, dtype: torch.dtype, spelled: str) -> None:
    source = f"void f(const {spelled}* x, {spelled}* y, {spelled} one, int64_t n) {{ {BODY.format()} }}"
    x, one = values(dtype), 1 if not dtype.is_floating_point else 0.25
    y = torch.zeros_like(x)
    cpp_op(source, "f", f"const {word}* x, {word}* y, {word} one, int64 n")(x, y, one, 4)
    expected = x.tolist()[::-1]
    expected[1] = one
    assert y.tolist() == expected


@needs_compiler
@pytest.mark.parametrize("dtype", [element.dtype for element in _ELEMENTS])
@pytest.mark.parametrize("name", ["f<T>", "f"])
def test_a_type_variable_in_cpp(dtype: torch.dtype, name: str) -> None:
    head = (
        "template <class U> void f(const U* x, U* y, int64_t n)" if "<" in name else "void f(const T* x, T* y, long n)"
    )
    x = values(dtype)
    y = torch.zeros_like(x)
    cpp_op(f"{head} {{ for (int64_t i = 0; i < n; ++i) y[i] = x[n - 1 - i]; }}", name, "const T* x, T* y, int64 n")(
        x, y, 4
    )
    assert y.tolist() == x.tolist()[::-1]


@needs_compiler
@pytest.mark.parametrize("spelled", LONG[torch.int64])
def test_a_variable_of_64_bits_is_any_word_for_them(spelled: str) -> None:
    x, y = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    source = f"void f(const {spelled}* x, {spelled}* y) {{ for (int i = 0; i < 4; ++i) y[i] = x[3 - i]; }}"
    cpp_op(source, "f", "const T* x, T* y")(x, y)
    assert y.tolist() == [3, 2, 1, 0]
    of_template = "template <class U> void g(const U* x, U* y) { y[0] = x[3]; }"
    cpp_op(of_template, f"g<{spelled}>", "const T* x, T* y")(x, y)
    assert y.tolist() == [3, 2, 1, 0]


@needs_compiler
def test_a_function_that_promises_not_to_throw() -> None:
    y = torch.zeros(1)
    cpp_op("void f(float* y, int64_t n) noexcept { y[0] = n; }", "f", "float* y, int64 n")(y, 3)
    assert y.item() == 3


@needs_compiler
def test_a_specialisation_for_int64_is_taken() -> None:
    source = """
    template <class U> int which() { return 1; }
    template <> int which<int64_t>() { return 2; }
    void f(const T* x, int32_t* y) { y[0] = which<T>(); }
    """
    y = torch.zeros(1, dtype=torch.int32)
    cpp_op(source, "f", "const T* x, int32* y")(torch.zeros(1, dtype=torch.int64), y)
    assert y.item() == 2


@needs_compiler
@pytest.mark.parametrize("spelled", ["const int*", "const uint64_t*", "int64_t*", "const double*", "const int64_t**"])
def test_other_types_stay_others(spelled: str) -> None:
    with pytest.raises(CompileError, match=r"parameter 1 of f must be"):
        cpp_op(f"void f({spelled} x) {{}}", "f", "const int64* x").prepare()


@needs_nvrtc
@pytest.mark.parametrize(("word", "dtype", "spelled"), PAIRS, ids=str)
def test_in_cuda(word: str, dtype: torch.dtype, spelled: str) -> None:
    source = f"__global__ void f(const {spelled}* x, {spelled}* y, {spelled} one, int64_t n) {{ {BODY.format()} }}"
    signature = f"const {word}* x, {word}* y, {word} one, int64 n"
    assert cuda_kernel(source, "f", signature, grid=1).compile("sm_90").cubin[:4] == b"\x7fELF"


@needs_nvrtc
@pytest.mark.parametrize("dtype", [element.dtype for element in _ELEMENTS])
def test_a_type_variable_in_cuda(dtype: torch.dtype) -> None:
    source = "template <class U> __global__ void f(const U* x, U* y, long n) { y[threadIdx.x] = x[n - threadIdx.x]; }"
    kernel = cuda_kernel(source, "f<T>", "const T* x, T* y, int64 n", grid=1)
    assert kernel.compile("sm_90", dtype).cubin[:4] == b"\x7fELF"
