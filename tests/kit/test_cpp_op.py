"""C++ functions that are compiled at run time, and the checks of a signature, which are those of CUDA kernels too."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from ctypes import Structure, c_bool, c_double, c_int8, c_int16, c_int64, c_uint16, c_void_p, sizeof
from pathlib import Path

import pytest
import torch
from common import DTYPES, needs_compiler

from fastops.kit import CompileError, KitError, NoCompiler, compiler, cpp_op
from fastops.kit.signature import Signature

SCALE = """\
template <class U>
void scale(const U* x, U* y, int64_t n, double factor) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * opmath_t<U>(factor);
}
"""
SIGNATURE = "const T* x, T* y, int64 n, double factor"


def scale(source: str = SCALE, name: str = "scale<T>", signature: str = SIGNATURE, **more: object):  # type: ignore[no-untyped-def]
    return cpp_op(source, name, signature, **more)  # type: ignore[arg-type]


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
def test_values(dtype: torch.dtype) -> None:
    x = torch.randn(1000, dtype=dtype)
    y = torch.empty_like(x)
    scale()(x, y, x.numel(), 0.5)
    torch.testing.assert_close(y, x * 0.5, rtol=0, atol=0)


@needs_compiler
def test_special_values_go_through_functions_of_functions() -> None:
    source = """
    #include <cmath>
    template <class T>
    void turned(const T* x, T* y, int64_t n) {
      for (int64_t i = 0; i < n; ++i) y[i] = std::cos(std::atan(x[i])) + std::sin(std::atan(x[i]));
    }
    """
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([math.nan, math.inf, -0.0, 1.0], dtype=dtype)
        y = torch.empty_like(x)
        cpp_op(source, "turned<T>", "const T* x, T* y, int64 n")(x, y, 4)
        torch.testing.assert_close(y, x.atan().cos() + x.atan().sin(), equal_nan=True)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    source = """
    void widen(const T* x, float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i]; }
    void narrow(const float* x, T* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i]; }
    """
    every = torch.arange(2**16).to(torch.uint16).view(dtype)
    wide = torch.empty(2**16)
    cpp_op(source, "widen", "const T* x, float* y, int64 n")(every, wide, 2**16)
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)

    exact = every.float()[every.isfinite()].sort().values
    ties = (exact[1:].double() + exact[:-1].double()).div(2).float()
    around = [f(ties) for f in (lambda t: t, lambda t: t.nextafter(exact[-1:]), lambda t: t.nextafter(exact[:1]))]
    beyond = torch.tensor([65519.99, 65520.0, 1e30, 3.3953e38, math.inf, math.nan, 1e-45, 2.0**-25, -(2.0**-25), -0.0])
    x = torch.cat([exact, *around, beyond, -beyond, torch.randn(10_000) * 1e-5])
    y = torch.empty_like(x, dtype=dtype)
    cpp_op(source, "narrow", "const float* x, T* y, int64 n")(x, y, x.numel())
    torch.testing.assert_close(y, x.to(dtype), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(y.signbit() | y.isnan(), x.signbit() | x.isnan())


@needs_compiler
def test_every_type_arrives() -> None:
    words = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "T"]
    signature = "T* y, " + ", ".join(f"{word} a{k}" for k, word in enumerate(words))
    types = [w if w in ("bool", "float", "double", "T") else f"{w}_t" for w in words]
    parameters = "T* y, " + ", ".join(f"{t} a{k}" for k, t in enumerate(types))
    body = " ".join(f"y[{k}] = T(float(a{k} - (a{k} > 1000 ? a{k} - 5 : 0)));" for k in range(len(words)))
    values = [True, -128, -(2**15), -(2**31), 2**63 - 1, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 0.25, 1 / 3, 1.5]
    for dtype in (torch.float32, torch.bfloat16):
        y = torch.empty(len(words), dtype=dtype)
        cpp_op(f"void every({parameters}) {{ {body} }}", "every", signature)(y, *values)
        expected = [1, -128, -(2**15), -(2**31), 5, 255, 5, 5, 5, 0.25, 1 / 3, 1.5]
        torch.testing.assert_close(y, torch.tensor(expected, dtype=dtype), rtol=0, atol=0)


def test_offsets_are_those_of_a_struct() -> None:
    signature = Signature("bool a, const T* x, int8 b, int16 c, int8 d, int64 e, int8 f, double g, int8 h, T i", "f")
    fields = [c_bool, c_void_p, c_int8, c_int16, c_int8, c_int64, c_int8, c_double, c_int8, c_uint16]

    class Arguments(Structure):
        _fields_ = [(p.name, field) for p, field in zip(signature.parameters, fields, strict=True)]

    packing = signature.packing({"T": torch.bfloat16})
    assert packing.offsets == [getattr(Arguments, p.name).offset for p in signature.parameters]
    values = [True, None, -3, -300, 5, -(2**40), 7, 0.1, -9, 1.0]
    found = Arguments.from_buffer_copy(packing(values).ljust(sizeof(Arguments), b"\0"))
    assert [getattr(found, p.name) for p in signature.parameters] == [*values[:-1], 0x3F80]


@needs_compiler
def test_none_is_a_null_pointer() -> None:
    op = cpp_op("void f(const float* b, T* y) { y[0] = b ? *b : -1; }", "f", "const float* b, T* y")
    y = torch.empty(1)
    op(None, y)
    assert y.item() == -1
    op(torch.ones(1), y)
    assert y.item() == 1


@needs_compiler
def test_strides_where_they_are_asked_for() -> None:
    source = "void f(const T* x, T* y, int64_t n, int64_t step) { for (int i = 0; i < n; ++i) y[i] = x[i * step]; }"
    signature = "const T* x, T* y, int64 n, int64 step"
    x, y = torch.randn(10)[::2], torch.empty(5)
    cpp_op(source, "f", signature, contiguous=False)(x, y, 5, 2)
    torch.testing.assert_close(y, x.contiguous(), rtol=0, atol=0)


@needs_compiler
def test_from_several_threads_at_once() -> None:
    x, ys = torch.randn(1000), [torch.empty(1000) for _ in range(4)]
    op = scale()
    threads = [threading.Thread(target=op, args=(x, y, 1000, 2.0)) for y in ys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, x * 2) for y in ys)


# Wrong calls


def call(**changes: object) -> None:
    arguments = {"x": torch.zeros(4), "y": torch.zeros(4), "n": 4, "factor": 1.0} | changes
    scale()(*arguments.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, r"expected 4 arguments \(const T\* x, T\* y, int64 n, double factor\), got 5"),
        ({"y": torch.zeros(4, dtype=torch.float64)}, "y must have dtype torch.float32 by T, got torch.float64"),
        ({"x": torch.zeros(4, dtype=torch.complex64)}, "x must have dtype a real one, got torch.complex64"),
        ({"x": torch.zeros(8)[::2]}, r"x must be contiguous, got strides \[2\] of shape \[4\]"),
        ({"x": torch.zeros(4, device="meta")}, "x must be on a CPU device, got meta"),
        ({"x": torch.zeros(4, requires_grad=True)}, "x must be without grad, .* kit.op"),
        ({"x": [0.0]}, "x must be a plain tensor, got list"),
        ({"x": None, "y": None}, "at least one tensor of type T must not be None"),
        ({"n": 4.0}, "n must be an integer, got float"),
        ({"n": "4"}, "n must be an integer, got str"),
        ({"n": torch.tensor(4)}, r"n must be an integer, got Tensor \(use .item"),
        ({"n": 2**63}, f"n must fit int64, got {2**63}"),
        ({"factor": "1"}, "factor must be a number, got str"),
        ({"factor": torch.tensor(1.0)}, "factor must be a number, got Tensor"),
        ({"factor": 1j}, "factor must be a real number, got complex"),
    ],
)
@needs_compiler
def test_wrong_arguments(changes: dict[str, object], message: str) -> None:
    with pytest.raises(KitError, match=rf"^\[scale\] {message}"):
        call(**changes)


@needs_compiler
@pytest.mark.parametrize(
    ("word", "value"),
    [("int8", 128), ("int8", -129), ("uint8", -1), ("int32", 2**31), ("uint64", -1), ("uint64", 2**64)],
)
def test_numbers_outside_of_their_type(word: str, value: int) -> None:
    op = cpp_op(f"void f(T* y, {word}_t a) {{ *y = a; }}", "f", f"T* y, {word} a")
    y = torch.full((1,), 7.0)
    with pytest.raises(KitError, match=r"^\[f\] a must fit "):
        op(y, value)
    assert y.item() == 7


@needs_compiler
def test_a_parameter_may_be_called_without_grad_mode() -> None:
    weight, y = torch.nn.Parameter(torch.ones(3)), torch.empty(3)
    with torch.no_grad():
        scale()(weight, y, 3, 2.0)
    assert y.tolist() == [2, 2, 2]


# Compiling


@needs_compiler
def test_an_error_shows_the_users_own_line(empty_cache: Path) -> None:
    with pytest.raises(CompileError) as raised:
        scale(SCALE.replace("x[i] *", "foo(x[i]) *"))(torch.zeros(1), torch.zeros(1), 1, 1.0)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("[scale] does not compile with ")
    place = next(k for k, line in enumerate(lines) if "scale:3:" in line and "error: " in line)
    assert "for (int64_t i = 0; i < n; ++i) y[i] = foo(x[i])" in lines[place + 1]
    assert "^" in lines[place + 2]
    assert Path(lines[-1].removeprefix("The full source is ")).parent == empty_cache


@needs_compiler
@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("const T* x, T* y, int64 n", "must have the 3 parameters of the signature"),
        ("const T* x, T* y, int32 n, double factor", "parameter 3 of scale<T> must be 'int32 n', as the signature"),
        ("T* x, T* y, int64 n, double factor", r"parameter 1 of scale<T> must be 'T\* x', as the signature"),
    ],
)
def test_the_function_is_held_against_its_signature(signature: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        scale(signature=signature).prepare(torch.float32)


@needs_compiler
def test_a_template_without_its_arguments() -> None:
    with pytest.raises(CompileError, match='of a template: name="scale<T>"'):
        scale(name="scale").prepare(torch.float32)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("scael<T>", "[scael] name='scael<T>' is nowhere in the source, which defines scale"),
        ("scale", "[scale] scale is a template: expected name='scale<T>', got 'scale'"),
    ],
)
def test_a_wrong_name_is_told_before_what_the_compiler_says(name: str, first: str) -> None:
    with pytest.raises(CompileError) as raised:
        scale(name=name).prepare(torch.float32)
    assert str(raised.value).splitlines()[0] == first


@needs_compiler
def test_a_name_that_a_macro_makes_is_the_compilers_to_find() -> None:
    source = "#define DEFINE(a, b) void a##b(float* y) { y[0] = 3; }\nDEFINE(thr, ee)"
    y = torch.zeros(1)
    cpp_op(source, "three", "float* y")(y)
    assert y.item() == 3


@needs_compiler
def test_prepared_again_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    op = scale()
    op.prepare(torch.float32)
    monkeypatch.setattr(compiler, "shared_library", None)
    op.prepare(torch.float32)
    with pytest.raises(TypeError):
        op.prepare(torch.float64)


@needs_compiler
def test_compiled_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler._opened.clear()
    scale().prepare(torch.float32)
    assert len(list(empty_cache.iterdir())) == 1
    compiler._opened.clear()
    monkeypatch.setattr(compiler, "_compile", None)
    scale().prepare(torch.float32)
    compiler._opened.clear()
    with pytest.raises(TypeError):
        scale(options=["-DANOTHER"]).prepare(torch.float32)


def unwritable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTOPS_CACHE_DIR", "/dev/null/cache")


def damaged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale().prepare(torch.float64)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:1000])


@needs_compiler
@pytest.mark.parametrize("harm", [unwritable, damaged])
def test_a_cache_that_is_no_help(
    harm: Callable[[Path, pytest.MonkeyPatch], None], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler._opened.clear()
    harm(empty_cache, monkeypatch)
    compiler._opened.clear()
    y = torch.empty(2, dtype=torch.float64)
    scale()(torch.ones_like(y), y, 2, 3.0)
    assert y.tolist() == [3, 3]


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert compiler.available() is None
    with pytest.raises(
        NoCompiler, match=r"^\[scale\] there is no C\+\+ compiler here \(looked for c\+\+, g\+\+, clang\+\+\)"
    ):
        scale().prepare(torch.float32)
    monkeypatch.setenv("CXX", "/opt/my/c++")
    with pytest.raises(NoCompiler, match=r"looked for /opt/my/c\+\+"):
        scale().prepare(torch.float32)


@needs_compiler
def test_the_compiler_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(CompileError, match=r"^\[scale\] does not compile with /bin/false:\nexit status 1"):
        scale(SCALE + "// not from the cache\n").prepare(torch.float32)


def test_the_content_hash_is_that_of_the_content() -> None:
    changed = [scale(SCALE + " "), scale(name="scale<float>"), scale(options=["-g"]), scale(contiguous=False)]
    assert scale().content_hash == scale().content_hash
    assert len({op.content_hash for op in [scale(), *changed]}) == 1 + len(changed)


@needs_compiler
def test_a_pending_negation_is_refused() -> None:
    x, y = torch.tensor([1 + 2j]).conj().imag, torch.empty(1)
    assert x.is_neg()
    with pytest.raises(KitError, match=r"x must be without a pending sign: call .resolve_neg\(\)"):
        scale()(x, y, 1, 2.0)


@needs_compiler
@pytest.mark.parametrize(
    ("thrown", "text"),
    [('std::runtime_error("it is 3")', "it is 3"), ('std::runtime_error("")', ""), ("7", "not a std::exception")],
)
def test_an_exception_comes_to_python(thrown: str, text: str) -> None:
    source = f"#include <stdexcept>\nvoid f(float* y) {{ if (y[0] == 3) throw {thrown}; y[0] = 1; }}"
    function, y = cpp_op(source, "f", "float* y"), torch.full((1,), 3.0)
    with pytest.raises(RuntimeError, match=rf"^\[f\] the function threw an exception: {text}$"):
        function(y)
    function(y.zero_())
    assert y.item() == 1
    cpp_op("void f(float* y) { y[0] = 2; }", "f", "float* y", options=["-fno-exceptions"])(y)
    assert y.item() == 2
