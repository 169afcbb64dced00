"""CUDA C++ to machine code, which needs no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from common import DTYPES, needs_nvrtc

from fastops.kit import CompileError, KitError, NoCompiler, cuda_kernel, diagnostics, nvrtc

SHIFT = """\
template <class U>
__global__ void shift(const U* __restrict__ x, U* y, const int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] + opmath_t<U>(1);
}
"""
PLAIN = """\
T twice(T x) { return x + x; }
extern "C" __global__ void shift(const T* x, T* y, int64_t n) {
  if (threadIdx.x < n) y[threadIdx.x] = twice(x[threadIdx.x]);
}
"""
SIGNATURE = "const T* x, T* y, int64 n"


def shift(source: str = SHIFT, name: str = "shift<T>", signature: str = SIGNATURE, **more: object):  # type: ignore[no-untyped-def]
    return cuda_kernel(source, name, signature, grid="ceil(numel(x) / 256)", **more)  # type: ignore[arg-type]


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_template_for_each_dtype(dtype: torch.dtype) -> None:
    image = shift().compile("sm_90", dtype)
    assert image.cubin[:4] == b"\x7fELF"
    assert image.names["shift<T>"].startswith("_Z5shift")
    assert image.names["shift<T>"].encode() in image.cubin


@needs_nvrtc
def test_a_plain_kernel_may_use_t() -> None:
    image = shift(PLAIN, "shift").compile("sm_90", torch.int32)
    assert image.names == {"shift": "shift"}


@needs_nvrtc
@pytest.mark.parametrize("arch", [f"sm_{arch}" for arch in nvrtc.supported_archs()] if nvrtc.available() else [])
def test_every_architecture(arch: str) -> None:
    assert shift().compile(arch, torch.bfloat16).cubin[:4] == b"\x7fELF"


@needs_nvrtc
def test_the_cache_has_it_the_second_time(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shift().compile("sm_90", torch.float32)
    monkeypatch.setattr(nvrtc._Nvrtc, "compile", None)
    assert shift().compile("sm_90", torch.float32) == first
    for other in (shift(SHIFT + "\n"), shift(options=["--use_fast_math"])):
        with pytest.raises(TypeError):
            other.compile("sm_90", torch.float32)
    with pytest.raises(TypeError):
        shift().compile("sm_80", torch.float32)


@needs_nvrtc
def test_the_users_own_headers_are_read_each_time(empty_cache: Path, tmp_path: Path) -> None:
    header = tmp_path / "mine.h"
    kernel = shift('#include "mine.h"\n' + SHIFT, options=[f"-I{tmp_path}"])
    header.write_text("")
    kernel.compile("sm_90", torch.float32)
    header.write_text("#error changed")
    with pytest.raises(CompileError, match="changed"):
        kernel.compile("sm_90", torch.float32)


# Errors


@needs_nvrtc
def test_an_error_shows_the_users_own_line(empty_cache: Path) -> None:
    with pytest.raises(CompileError) as raised:
        shift(SHIFT.replace("x[i] +", "foo(x[i]) +")).compile("sm_90", torch.float32)
    head, place, line, caret, *_ = str(raised.value).splitlines()
    assert head.startswith("[shift] does not compile for sm_90 (NVRTC ")
    assert place == 'shift(4): error: identifier "foo" is undefined'
    assert line == "    if (i < n) y[i] = foo(x[i]) + opmath_t<U>(1);"
    assert caret.index("^") == line.index("foo")
    kept = Path(str(raised.value).rpartition("The full source is ")[2])
    assert "foo(x[i])" in kept.read_text()
    assert kept.parent == empty_cache


@needs_nvrtc
@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("const T* x, T* y", "must have the 2 parameters of the signature"),
        ("const T* x, T* y, int64 n, int64 m", "must have the 4 parameters of the signature"),
        ("const T* x, T* y, int32 n", "parameter 3 of shift<T> must be 'int32 n', as the signature has it"),
        ("const T* x, T* y, float n", "parameter 3 of shift<T> must be 'float n', as the signature has it"),
        ("T* x, T* y, int64 n", r"parameter 1 of shift<T> must be 'T\* x', as the signature has it"),
        ("const double* x, T* y, int64 n", r"parameter 1 of shift<T> must be 'const double\* x', as the"),
    ],
)
def test_the_kernel_is_held_against_its_signature(signature: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        shift(signature=signature).compile("sm_90", torch.float32)


@needs_nvrtc
def test_a_template_without_its_arguments() -> None:
    with pytest.raises(CompileError, match=r'of a template: name="shift<T>"'):
        shift(name="shift").compile("sm_90", torch.float32)


@needs_nvrtc
@pytest.mark.parametrize("name", ["shifty<T>", "shifty", "", "shift<T>;"])
def test_a_kernel_that_is_not_there(name: str) -> None:
    with pytest.raises(CompileError, match=r"does not compile for sm_90"):
        shift(name=name).compile("sm_90", torch.float32)


@needs_nvrtc
@pytest.mark.parametrize("option", ["--no-such-option", "--gpu-architecture=sm_1"])
def test_a_bad_option(option: str) -> None:
    with pytest.raises(CompileError, match=option.partition("=")[0]):
        shift(options=[option]).compile("sm_90", torch.float32)


@needs_nvrtc
def test_a_half_that_is_mixed_with_a_number_is_no_silent_conversion() -> None:
    source = SHIFT.replace("x[i] + opmath_t<U>(1)", "i > 3 ? x[i] : 0")
    shift(source).compile("sm_90", torch.float32)
    with pytest.raises(CompileError, match="ambiguous"):
        shift(source).compile("sm_90", torch.float16)


@needs_nvrtc
def test_the_architecture_of_a_card() -> None:
    known = nvrtc.supported_archs()
    assert nvrtc.best_arch(90) == "sm_90"
    assert nvrtc.best_arch(max(known) // 10 * 10 + 9) == f"sm_{max(known)}"  # a later card of the newest family
    for unknown in (50, 62, 101, 990):
        with pytest.raises(CompileError, match=f"compute capability {unknown // 10}.{unknown % 10}, only for sm_"):
            nvrtc.best_arch(unknown)


@pytest.mark.parametrize(
    ("cuda", "command"),
    [
        ("13.0", 'pip install "nvidia-cuda-nvrtc==13.0.*"'),
        ("12.8", 'pip install "nvidia-cuda-nvrtc-cu12==12.8.*"'),
        (None, 'pip install "nvidia-cuda-nvrtc"'),
    ],
)
def test_without_nvrtc(monkeypatch: pytest.MonkeyPatch, cuda: str | None, command: str) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(nvrtc, "_found", lambda majors: None)
    monkeypatch.setattr(nvrtc, "by_conda", lambda: False)
    assert nvrtc.available() is None
    with pytest.raises(NoCompiler) as raised:
        shift().compile("sm_90", torch.float32)
    assert str(raised.value) == f"[shift] NVRTC is missing, the compiler of CUDA kernels. {command}"


def test_a_damaged_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"\x7fELF nothing")
    monkeypatch.setattr(nvrtc, "_found", lambda majors: str(library))
    with pytest.raises(NoCompiler, match=r"does not open: .*libnvrtc\.so\.13"):
        shift().compile("sm_90", torch.float32)


@needs_nvrtc
def test_from_the_cache_nvrtc_is_not_even_opened(empty_cache: Path) -> None:
    code = """
import sys, torch  # which opens NVRTC itself where it has CUDA
from fastops.kit import cuda_kernel
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "ctypes.dlopen" else None)
cuda_kernel(sys.argv[1], "shift<T>", "const T* x, T* y, int64 n", grid=1).compile("sm_90", torch.float32)
print(any("nvrtc" in name for name in opened))
"""
    opened = [
        subprocess.run([sys.executable, "-c", code, SHIFT], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert opened == ["True\n", "False\n"]


def test_lines_are_found_by_their_numbers() -> None:
    source = 'header\n#line 1 "swish"\none\n\ttwo\n#line 10 "other"\nten\n'
    log = "swish:2:2: error: bad\nother:10:1: note: here\n  shown\nswish:9:1: error: no such line"
    text = str(diagnostics.compile_error("swish", "here", log, source)).splitlines()
    assert text[1:-1] == [
        "swish:2:2: error: bad",
        "  \ttwo",
        "  \t^",
        "other:10:1: note: here",
        "  shown",
        "swish:9:1: error: no such line",
    ]


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("const T* x, T* x", "name each parameter once, got x twice"),
        ("const T* x, int64", "list parameters like .*, got 'int64'"),
        ("const T* x, ", "list parameters like .*, got ''"),
        ("const T** x", "list parameters like"),
        ("const T& x", "list parameters like"),
        ("const t* x", "x must have a type variable such as T as its type, or one of float, .*; got t"),
        ("complex64* x", "got complex64"),
        ("const T* x, U n", "type variable U must be the type of a tensor"),
    ],
)
def test_what_is_no_signature(signature: str, message: str) -> None:
    with pytest.raises(KitError, match=rf"^\[shift\] .*{message}"):
        shift(signature=signature)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grid": ()}, "grid must have one to three sizes, got 0"),
        ({"grid": (1, 1, 1, 1)}, "grid must have one to three sizes, got 4"),
        ({"grid": 1.5}, "a size must be an integer, an expression or a callable, got float"),
        ({"grid": 1, "block": "n / 2"}, "a quotient must be rounded"),
        ({"grid": 1, "shared": "4 * k"}, "not 'k'"),
    ],
)
def test_what_is_no_size(more: dict[str, object], message: str) -> None:
    with pytest.raises(KitError, match=message):
        cuda_kernel(SHIFT, "shift<T>", SIGNATURE, **more)  # type: ignore[arg-type]


def test_the_content_hash_is_that_of_the_content() -> None:
    assert shift().content_hash == shift().content_hash
    changed = [
        shift(SHIFT + " "),
        shift(PLAIN, "shift"),
        shift(signature=SIGNATURE.replace("64", "32")),
        shift(block=128),
        shift(shared=4),
        shift(options=["--use_fast_math"]),
        shift(contiguous=False),
        cuda_kernel(SHIFT, "shift<T>", SIGNATURE, grid="ceil(n / 128)"),
        cuda_kernel(SHIFT, "shift<T>", SIGNATURE, grid=lambda x, y, n: n),
        cuda_kernel(SHIFT, "shift<T>", SIGNATURE, grid=lambda x, y, n: n + 1),
    ]
    assert len({kernel.content_hash for kernel in [shift(), *changed]}) == 1 + len(changed)
