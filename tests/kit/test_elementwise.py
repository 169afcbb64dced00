"""kit.elementwise: the values of its kernels, against float64 of the same rounded inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from common import DTYPES, needs_nvrtc
from elementwise_ops import compare, swish, true_swish, true_wave, wave
from torch import Tensor

from fastops import kit
from fastops.kit import nvrtc

# Values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 255, 513, 4099])
def test_contiguous(device: torch.device, dtype: torch.dtype, size: int) -> None:
    x = (3 * torch.randn(size, device=device)).to(dtype)
    got = swish(x, beta=1.5)
    assert got.dtype == dtype
    if size:
        compare(got, true_swish(x.double(), 1.5))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "every other": lambda x: x[..., ::2],
    "offset": lambda x: x.flatten()[1:],
    "column": lambda x: x[:, :1, :1],
    "expanded": lambda x: x[:1].expand(5, -1, -1),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(1, 0, 2)[:, 1:],
    "0-d": lambda x: x[0, 0, 0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(device: torch.device, dtype: torch.dtype, layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(6, 8, 16, device=device).to(dtype))
    got, plain = swish(x), torch.exp(x)
    compare(got, true_swish(x.double()))
    assert got.stride() == plain.stride()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a", "b"),
    [((5, 7), (7,)), ((5, 1), (1, 8)), ((4, 1, 16), (3, 16)), ((), (3, 4)), ((0, 3), (1, 3)), ((64, 1), (64, 64))],
    ids=str,
)
def test_broadcasting(device: torch.device, dtype: torch.dtype, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.randn(a, device=device).to(dtype), torch.randn(b, device=device).to(dtype)
    for got, truth in zip(wave(x, y), true_wave(x.double(), y.double()), strict=True):
        assert got.dtype == dtype
        if truth.numel():
            compare(got, truth)
    for got, plain in zip(wave(x, y.t() if y.dim() == 2 and a == b else y), [x + y] * 2, strict=True):
        assert got.stride() == plain.stride()


def test_mixed_layouts_choose_torchs_strides(device: torch.device) -> None:
    x, y = torch.randn(6, 8, device=device), torch.randn(8, 6, device=device).t()
    for a, b in ((x, y), (y, x), (x[:, ::2], y[:, ::2])):
        for got, truth in zip(wave(a, b), true_wave(a.double(), b.double()), strict=True):
            compare(got, truth)
            assert got.stride() == (a + b).stride()


@pytest.mark.parametrize("second", [*DTYPES, torch.int64, torch.bool, torch.complex64])
@pytest.mark.parametrize("first", DTYPES)
def test_promotion(device: torch.device, first: torch.dtype, second: torch.dtype) -> None:
    x = torch.randn(4, 6, device=device).to(first)
    for y in (torch.ones(6, dtype=second, device=device), torch.tensor(1, dtype=second, device=device)):
        expected = (x + y).dtype
        for got in wave(x, y):
            assert got.dtype == expected
    if not second.is_complex:
        y = torch.rand(6, device=device).to(second)
        compare(wave(x, y)[0], true_wave(x.double(), y.double())[0])


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_one_dtype_for_the_whole_expression(compiled: bool, device: torch.device) -> None:
    """The docstring's sentences: no step has a dtype of its own, and an integer is not rounded to a half type first."""
    difference, total = kit.elementwise("f(x, y)", "x - y"), kit.elementwise("g(x, y, z)", "x + y + z")
    if compiled:
        difference, total = (torch.compile(f, fullgraph=True, backend="aot_eager") for f in (difference, total))
    i = torch.tensor([70000], device=device)
    h = torch.tensor([64992.0], dtype=torch.float16, device=device)
    assert (i + h).isinf().all(), "torch's own rounds the integer"
    got = difference(i, h)
    assert (got.dtype, got.item()) == (torch.float16, 5008.0)
    got = total(i, h, torch.zeros(1, device=device))
    assert (got.dtype, got.item()) == (torch.float32, 134992.0)


def test_integers_give_floating_point(device: torch.device) -> None:
    x = torch.arange(-3, 4, device=device)
    compare(swish(x), true_swish(x.double()))
    assert swish(x).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half(device: torch.device, dtype: torch.dtype) -> None:
    """Each value there is, denormals, infinities and NaN among them, survives widening and narrowing."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device).to(torch.int16).view(dtype)
    same = kit.elementwise("same(x)", "x * 1.0 + 0.0 * 0.0")
    got = same(x)
    assert torch.equal(got.isnan(), x.isnan())
    assert torch.equal(got[~got.isnan()], x[~x.isnan()])
    third = kit.elementwise("third(x)", "x / 3")
    got = third(x)
    torch.testing.assert_close(got, (x.float() / 3).to(dtype), rtol=0, atol=0, equal_nan=True)


PLACED = [
    "exp(x)",
    "log(x)",
    "sin(x)",
    "cos(x)",
    "tan(x)",
    "tanh(x)",
    "sinh(x)",
    "asinh(x)",
    "expm1(x)",
    "log1p(x)",
    "log2(x)",
    "x ** 0.3",
    "1.7 ** x",
    "hypot(x, 0.3)",
    "atan2(x, 0.7)",
    "erf(x)",
    "erfc(x)",
    "rsqrt(x)",
    "x % 0.7",
    "x / (1 + exp(-x))",
    "x > 1 ? exp(x) : log(x)",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("body", PLACED)
def test_a_result_does_not_depend_on_its_place(device: torch.device, body: str, dtype: torch.dtype) -> None:
    """Vectors and the loop's remainder call the same functions: else results would vary with the number of threads."""
    op = kit.elementwise("placed(x)", body)
    x = (torch.rand(256, dtype=torch.float64, device=device) * 8 + 0.01).to(dtype)
    whole = op(x)
    for n in range(1, 68):
        first = n % 7
        part, apart = slice(first, first + n), slice(first, first + 3 * n, 3)
        assert torch.equal(op(x[part]), whole[part])
        assert torch.equal(op(x[apart]), whole[apart])
        assert torch.equal(op(x[n].expand(n)), whole[n].expand(n))
        assert torch.equal(op(x[n]), whole[n])
        assert torch.equal(op(x[: 3 * n].view(3, n).t()), whole[: 3 * n].view(3, n).t())


def test_many_dimensions_that_do_not_merge() -> None:
    x = torch.randn(*[2] * 18, dtype=torch.float64)[..., :1].permute(*range(0, 18, 2), *range(1, 18, 2))
    y = torch.randn(*[2] * 17, 1, dtype=torch.float64)
    compare(wave(x, y)[0], true_wave(x, y)[0])


def test_outputs_are_the_callers_own() -> None:
    x = torch.randn(5)
    for body in ("x", "x, x", "1, x"):
        got = kit.elementwise("f(x)", body)(x)
        for output in got if isinstance(got, tuple) else (got,):
            output.zero_()
    assert x.abs().sum() > 0


def test_eight_tensors() -> None:
    names = "abcdefgh"
    op = kit.elementwise(f"total({', '.join(names)})", " + ".join(f"{k + 1} * {n} * {n}" for k, n in enumerate(names)))
    x = [torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in names]
    compare(op(*x).detach(), sum((k + 1) * t.detach() ** 2 for k, t in enumerate(x)))
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x, fast_mode=True)


def test_derivatives_beyond_what_kernels_take() -> None:
    """The third by eight tensors has 25 in and 17 out."""
    names = [f"x{k}" for k in range(8)]
    op = kit.elementwise(f"product({', '.join(names)})", " * ".join(f"exp({k + 1} * {x})" for k, x in enumerate(names)))
    x = [(0.1 * torch.rand(3, dtype=torch.float64)).requires_grad_() for _ in names]
    y = op(*x)
    value = y.detach()
    for order in (1, 2, 3, 4):
        y = sum(torch.autograd.grad(y.sum(), x, create_graph=order < 4))
        torch.testing.assert_close(y.detach(), 36**order * value)  # 36 = 1 + 2 + ... + 8


def test_more_arguments_than_kernels_take() -> None:
    names = [f"x{k}" for k in range(26)]
    total = kit.elementwise(f"total({', '.join(names)})", " + ".join(f"{x} * {x}" for x in names))
    x = [torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in names]
    compare(total(*x).detach(), sum(t.detach() ** 2 for t in x))
    for gradient, t in zip(torch.autograd.grad(total(*x).sum(), x), x, strict=True):
        compare(gradient, 2 * t.detach())
    assert total.explain(*x) == (
        "plain PyTorch: kernels take 26 tensors in and out and 8 scalars, this has 26 in, 1 out and 0"
    )
    total.prepare(device="cpu")
    scalars = ", ".join(f"s{k}={k}" for k in range(9))
    scaled = kit.elementwise(f"scaled(x, *, {scalars})", "x * s8")
    assert scaled(torch.ones(1), s8=3).item() == 3
    norm = kit.reduction(
        f"norm(x, *, {scalars.rpartition(',')[0]})", map="x * x", post="sqrt(a) * s7", backward="grad * n"
    )
    assert torch.autograd.grad(norm(x[0]), x[0])[0].tolist() == [2, 2]


def test_a_large_tensor_is_shared_out(device: torch.device) -> None:
    x = torch.randn(1 << 20, device=device)
    compare(swish(x), true_swish(x.double()))
    compare(swish(x.view(1024, 1024).t()[:, ::2]), true_swish(x.double().view(1024, 1024).t()[:, ::2]))


# CUDA

ARCHS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]
VARIANTS = [0, 1, 3, 5, 7]


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_cuda_source_compiles(arch: str) -> None:
    """Without a GPU: each variant, and dtypes alone and mixed."""
    for variant in VARIANTS:
        for dtypes in (
            ((2, 2, 2), (0, 0, 0)) if variant else ((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3), (2, 0, 2), (2, 2, 3))
        ):
            source = wave._program.cuda(dtypes, variant)
            assert nvrtc.compile(source, name="wave", arch=arch).cubin.startswith(b"\x7fELF")


def test_wide_indices(cuda: torch.device) -> None:
    if torch.cuda.mem_get_info()[0] < 14 << 30:
        pytest.skip("needs 14 GiB of GPU memory")
    x = torch.zeros(2**31 + 64, device=cuda, dtype=torch.float16)
    x[-1] = 1.0
    assert float(swish(x)[-1]) == pytest.approx(0.731, abs=1e-3)
    assert float(swish(x[::2][: 2**30])[0]) == 0.0


def test_side_stream_and_graph(cuda: torch.device) -> None:
    x = torch.randn(1 << 20, device=cuda)
    truth = true_swish(x.double())
    swish.prepare(device=cuda)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = swish(x)
    stream.synchronize()
    compare(got, truth)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = swish(x)
    x.copy_(-x)
    graph.replay()
    torch.cuda.synchronize()
    compare(got, true_swish(x.double()))


def test_a_scalar_of_the_cpu_beside_cuda_tensors(cuda: torch.device) -> None:
    x = torch.randn(5, device=cuda)
    compare(
        wave(x, torch.tensor(0.5))[0], true_wave(x.double(), torch.tensor(0.5, dtype=torch.float64, device=cuda))[0]
    )
