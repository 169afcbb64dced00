"""kit.numba_op of whole numba.cuda kernels. The CPU runs their twins; what a GPU would run is compiled without one."""

from __future__ import annotations

import copy
import importlib.util
import math
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fastops import kit
from fastops.kit import linker, numba_abi, numba_kernel, nvrtc
from fastops.kit.numba_abi import Kind

numba = pytest.importorskip("numba", reason='Numba is not installed: pip install "fastops[numba]"')

from numba import cuda  # noqa: E402

GRID = "ceil(numel(out) / 256)"


@cuda.jit
def square_kernel(x: Any, out: Any) -> None:
    i = cuda.grid(1)
    if i < out.size:
        out.flat[i] = x.flat[i] * x.flat[i]


@cuda.jit
def transform_kernel(out: Any, bias: Any, a: Any, x: Any, twice: Any, mean: Any) -> None:
    """Parameters in an order of their own, one of them a number and one a truth."""
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = 0.0
        for j in range(x.shape[1]):
            value = a * x[i, j] + bias[j]
            out[i, j] = value * 2 if twice else value
            total += value
        mean[i] = total / x.shape[1]


def transform_outputs(x: Tensor, bias: Tensor, a: float, twice: bool) -> tuple[Tensor, Tensor]:
    if x.dim() != 2:
        raise ValueError(f"[transform] expected a matrix, got {list(x.shape)}")
    return torch.empty_like(x), x.new_empty(x.shape[0])


def transform_reference(x: Tensor, bias: Tensor, a: float, twice: bool) -> tuple[Tensor, Tensor]:
    transform_outputs(x, bias, a, twice)
    y = a * x + bias
    return (2 * y if twice else y + 0), y.mean(1)


square = kit.numba_op(cpu=lambda x: x * x, backward=lambda grad, x: 2 * x * grad, vmap="elementwise", grid=GRID)(
    square_kernel
)
transform = kit.numba_op(
    schema="kernels::transform(Tensor x, Tensor bias, float a=2.0, *, bool twice=False) -> (Tensor out, Tensor mean)",
    reference=transform_reference,
    fake=transform_outputs,
    grid="ceil(size(x, 0) / 64)",
    block=64,
)(transform_kernel)


def kernel_of(op: Any) -> numba_kernel.NumbaKernel:
    return op._parts.cuda


# The op, on the CPU


def test_the_twin_is_differentiable() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(square(x), x * x)
    assert torch.autograd.gradcheck(square, x)
    assert torch.autograd.gradgradcheck(square, x)
    bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, bias: transform(x, bias, 1.5, twice=True), (x, bias))


def test_every_transform() -> None:
    kit.check(square, torch.tensor([0.5, -1.0, 2.0]))
    kit.check(transform, (torch.randn(3, 4), torch.randn(4), 0.5), unsupported={"0-d": "x is a matrix"})


def test_a_copy_has_no_handles() -> None:
    kernel = copy.copy(kernel_of(square))
    kernel._ready[torch.device("cuda", 0), ()] = numba_kernel._Ready(1, numba_abi.Packing(()))
    again = copy.deepcopy(kernel)
    assert not again._ready
    assert again.content_hash == kernel.content_hash


def test_torch_compile() -> None:
    x = torch.randn(5, requires_grad=True)
    compiled = torch.compile(lambda x: square(x + 1).sum(), fullgraph=True)
    (grad,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(grad, 2 * (x + 1))


def test_a_changed_kernel_is_another_op() -> None:
    def raising(power: int, **more: Any) -> Any:
        @cuda.jit(**more)
        def raised(x: Any, out: Any) -> None:
            i = cuda.grid(1)
            if i < out.size:
                out[i] = x[i] ** power

        return kit.numba_op(cpu=torch.clone, grid=GRID)(raised)

    assert raising(2) is raising(2)
    others = [raising(2), raising(3), raising(2, fastmath=True), kit.numba_op(cpu=torch.clone, grid=1)(square_kernel)]
    assert len({op.raw for op in others}) == 4


def test_explain() -> None:
    assert re.fullmatch(
        r"fastops_numba\.square_kernel_\w+\.default on cpu: cpu=<lambda>", square.explain(torch.ones(1))
    )


def without_a_gpu(monkeypatch: pytest.MonkeyPatch, prepare: Any) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(numba_kernel.NumbaKernel, "_prepare", prepare)


def test_prepare_takes_the_arguments_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def prepare(self: Any, device: torch.device, kinds: tuple[Kind, ...]) -> None:
        compiled.append((device, kinds))
        self._ready[device, kinds] = None

    without_a_gpu(monkeypatch, prepare)
    op = kit.numba_op(grid=GRID, cpu=torch.clone)(square_kernel)
    rows = torch.empty(3, 4, dtype=torch.float16)
    for _ in range(2):
        op.prepare(rows)
        op.prepare(rows.t().to("meta"), device=1)
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert compiled == [
        (first, (Kind(torch.float16, 2, "C"), Kind(torch.float16, 2, "C"))),
        (second, (Kind(torch.float16, 2, "A"), Kind(torch.float16, 2, "A"))),
    ]
    transform.prepare(torch.empty(3, 8)[:, ::2], torch.empty(8)[::2], 0.5, device="cuda:1")
    assert compiled[2:] == [(second, TRANSFORM)]


def test_prepare_that_cannot_be() -> None:
    if not torch.cuda.is_available():
        with pytest.raises(kit.KitError, match=r"^\[square\w*\] prepare found no CUDA device"):
            square.prepare(torch.empty(3))
    with pytest.raises(kit.KitError, match=r"^\[f\] prepare is for a kernel of Numba's"):
        kit.op("my::f(Tensor x) -> Tensor", cuda=torch.clone).prepare(torch.empty(3))


# Errors


def test_definitions_that_cannot_be_served() -> None:
    with pytest.raises(kit.KitError, match=r"^\[square_kernel\] a kernel needs grid="):
        kit.numba_op(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[f\] a kernel needs grid="):
        kit.numba_op(block=64)(lambda_named("f"))
    with pytest.raises(kit.KitError, match=r"^\[f\] a kernel must have an input and an output, got x$"):
        kit.numba_op(grid=1)(lambda_named("f"))
    with pytest.raises(kit.KitError, match=r"^\[square\] the kernel must have the parameters x, y of the "):
        kit.numba_op(schema="my::square(Tensor x) -> Tensor y", grid=1)(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[square\] x must be of a type .* Tensor, int, float, bool, "):
        kit.numba_op(schema="my::square(Tensor out, str x) -> Tensor", grid=1)(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[square_kernel\] cannot use the size 'ceil\(n / 256\)'.* x, out,"):
        kit.numba_op(grid="ceil(n / 256)")(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[square_kernel\] block must have one to three sizes, got 4"):
        kit.numba_op(grid=1, block=(1, 1, 1, 1))(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[f\] expected of @cuda.jit's options .*opt, got link"):
        kit.numba_op(schema="my::f(Tensor x) -> Tensor y", grid=1)(cuda.jit(link=["other.cu"])(lambda x, y: None))
    with pytest.raises(kit.KitError, match=r"^\[kit.numba_op\] expected a function, or what @cuda.jit makes"):
        kit.numba_op(grid=1)(square)
    with pytest.raises(TypeError, match="unexpected keyword argument 'streams'"):
        kit.numba_op(grid=1, streams=2)(square_kernel)


def lambda_named(name: str) -> Any:
    function = lambda x: None  # noqa: E731
    function.__name__ = name
    return function


def test_a_cpu_without_a_twin() -> None:
    op = kit.numba_op(grid=GRID)(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[square_kernel\] has no kernel for cpu"):
        op(torch.ones(3))
    twin = kit.numba_op(grid=GRID, cpu=torch.clone)(square_kernel)
    with pytest.raises(kit.KitError, match=r"^\[square_kernel\] has no derivative"):
        twin(torch.ones(3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    ("changes", "x", "message"),
    [
        ({"block": 2048}, (4,), r"block must be integers from 0 to \[1024, 1024, 64\], got \[2048, 1, 1\]"),
        ({"grid": lambda x, out: -1}, (4,), r"grid must be integers"),
        ({"grid": "size(x, 3)"}, (4,), "grid cannot be computed: IndexError"),
        ({"shared": "numel(x) - 5"}, (4,), "shared must be integers"),
        ({"fake": lambda x: (x, x)}, (4,), "fake must return 1 outputs, got 2"),
        ({"fake": lambda x: x.to("meta")}, (4,), "all tensors must be on one device, got cpu and meta"),
        (
            {"fake": lambda x: x.to(torch.float8_e5m2)},
            (4,),
            "out must have a dtype that Numba has, got torch.float8",
        ),
    ],
)
def test_wrong_calls_end_before_anything_is_compiled(
    changes: dict[str, Any], x: tuple[int, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernel_of(kit.numba_op(**{"grid": GRID} | changes)(square_kernel))
    monkeypatch.setattr(kernel, "_prepare", lambda *_: pytest.fail("it compiled"))
    with pytest.raises(kit.KitError, match=rf"^\[square_kernel\] {message}"):
        kernel(torch.ones(x))


def test_nothing_is_compiled_for_an_empty_grid() -> None:
    assert kernel_of(square)(torch.empty(0, 3)).shape == (0, 3)


def test_without_numba_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    with pytest.raises(kit.NoCompiler, match=r'pip install "fastops(-cu\d+)?\[numba-cu\d+\]"'):
        kernel_of(square).image([Kind(torch.float32, 1, "C")] * 2, "sm_90")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(kit.NoCompiler, match=r'pip install "fastops(-cu\d+)?\[numba\]"'):
        kit.numba_op(grid=1)(square_kernel)


# What a GPU would run

compilers = pytest.mark.skipif(
    not (importlib.util.find_spec("numba_cuda") and linker._found() and nvrtc.available()),
    reason="numba-cuda, nvJitLink or NVRTC is not installed",
)
TRANSFORM = (
    *(Kind(torch.float32, 2, "C"), Kind(torch.float32, 1, "A"), Kind(float)),
    *(Kind(torch.float32, 2, "A"), Kind(bool), Kind(torch.float32, 1, "C")),
)


@compilers
@pytest.mark.parametrize("dtype", numba_abi.DTYPES)
@pytest.mark.parametrize(("dimensions", "layout"), [(0, "C"), (1, "C"), (3, "A")])
def test_images(dtype: torch.dtype, dimensions: int, layout: str) -> None:
    image = kernel_of(square).image([Kind(dtype, dimensions, layout), Kind(dtype, dimensions, "C")], "sm_90")
    assert image.startswith(b"\x7fELF")
    assert "square_kernel" in numba_kernel.entry(image)


@compilers
def test_parameters_are_those_that_are_packed() -> None:
    """The types of a kernel's parameters, as its PTX declares them, against the bytes."""
    from numba import cuda  # numba-cuda's, if its redirection has come late

    kernel = kernel_of(transform)
    types = [numba_abi.numba_type(cuda, kind, readonly=False) for kind in TRANSFORM]
    text, _ = cuda.compile(kernel._frozen.function, cuda.types.void(*types), device=False, abi="numba", cc=(9, 0))
    declared = re.findall(r"\.param \.([a-z]\d+)", re.search(r"\.entry \S+\((.*?)\)", text, re.DOTALL)[1])
    packed = [code for kind in TRANSFORM for code in numba_abi._codes(kind)]
    assert declared == [{"P": "u64", "q": "u64", "d": "f64", "?": "u8"}[code] for code in packed]


@compilers
def test_arguments_are_packed_as_numba_packs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.cuda import args, dispatcher

    class OnDevice(args.ArgHint):
        """A tensor as Numba's launcher sees it behind __cuda_array_interface__."""

        def to_device(self, retr: Any, stream: Any = 0) -> Any:
            return memory_view(self.value)

    x = torch.arange(12.0).view(3, 4).t()
    tensors = [x, torch.ones((), dtype=torch.int16), torch.empty(2, 0, 3, dtype=torch.complex64)]
    for value in (*tensors, 2.5, True, -7):
        kind = numba_abi.kind(value)
        given: list[Any] = []
        launcher = dispatcher._Kernel.__new__(dispatcher._Kernel)
        launcher.extensions = []
        hint = OnDevice(value) if isinstance(value, Tensor) else value
        launcher._prepare_args(numba_abi.numba_type(cuda, kind, True), hint, 0, [], given)
        assert [getattr(v, "value", v) for v in given] == list(numba_abi._values(value))


def memory_view(x: Tensor) -> Any:
    strides = tuple(x.element_size() * s for s in x.stride())
    return SimpleNamespace(
        size=x.numel(),
        dtype=SimpleNamespace(itemsize=x.element_size()),
        ptr=x.data_ptr(),
        shape=tuple(x.shape),
        _layout=SimpleNamespace(strides_in_bytes=strides, is_contiguous_c=True, is_contiguous_f=True),
    )


@compilers
def test_kernels_that_do_not_compile() -> None:
    @cuda.jit
    def overwrites(x: Any, out: Any) -> None:
        x[0] = out[0]

    @cuda.jit
    def unknown(x: Any, out: Any) -> None:
        out[0] = torch.relu(x[0])

    for function, message in ((overwrites, "Cannot modify readonly array"), (unknown, "relu")):
        kernel = kernel_of(kit.numba_op(grid=1)(function))
        said = rf"(?s)^\[{function.__name__}\] Numba does not compile it for sm_90: .*{message}"
        with pytest.raises(kit.CompileError, match=said):
            kernel.image([Kind(torch.float32, 1, "C")] * 2, "sm_90")


# On a GPU


@pytest.fixture(name="gpu")
def gpu_with_numba(request: pytest.FixtureRequest) -> torch.device:
    pytest.importorskip("numba_cuda", reason='numba-cuda is not installed: pip install "fastops-cu13[numba-cu13]"')
    return request.getfixturevalue("cuda")


def define(function: Any = square_kernel, **more: Any) -> Any:
    return kit.numba_op(**{"grid": GRID} | more)(function)


@pytest.mark.parametrize("dtype", numba_abi.DTYPES)
def test_values(gpu: torch.device, dtype: torch.dtype) -> None:
    x = (torch.randn(10, 5, 20, device=gpu) * 3).to(dtype).transpose(0, 2)
    exact = dtype.is_floating_point or dtype.is_complex
    expected = x * x if exact else (x.long() * x.long()).to(dtype)
    torch.testing.assert_close(define()(x), expected)


def test_strides_numbers_and_several_outputs(gpu: torch.device) -> None:
    x, bias = torch.randn(7, 300, device=gpu).t(), torch.randn(14, device=gpu)[::2]
    for more in ({}, {"twice": True}, {"a": -1}):
        expected = transform_reference(x.double(), bias.double(), more.get("a", 2.0), more.get("twice", False))
        for found, wanted in zip(transform(x, bias, **more), expected, strict=True):
            torch.testing.assert_close(found, wanted.float())


def test_shared_memory_and_0d(gpu: torch.device) -> None:
    @cuda.jit
    def total(x: Any, out: Any) -> None:
        kept = cuda.shared.array(0, numba.float32)
        t = cuda.threadIdx.x
        kept[t] = x[t]
        cuda.syncthreads()
        if t == 0:
            sum = 0.0
            for i in range(x.size):
                sum += kept[i]
            out[()] = sum

    op = define(total, grid=1, block="numel(x)", shared="4 * numel(x)", fake=lambda x: x.new_empty(()))
    x = torch.arange(100.0, device=gpu)
    assert op(x).item() == 4950


def test_gradients(gpu: torch.device) -> None:
    op = define(backward=lambda grad, x: 2 * x * grad)
    x = torch.randn(30, dtype=torch.float64, device=gpu, requires_grad=True)
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x)
    kit.check(square, torch.randn(30, device=gpu))


def test_the_current_stream(gpu: torch.device) -> None:
    op = define()
    op(torch.ones(1, device=gpu))
    stream = torch.cuda.Stream(gpu)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        x = torch.ones(1 << 20, device=gpu)
        torch.cuda._sleep(100_000_000)
        x.mul_(3)
        y = op(x)
        assert not stream.query()
    assert torch.cuda.default_stream(gpu).query()
    stream.synchronize()
    assert y.eq(9).all()


@pytest.mark.parametrize("first", [False, True], ids=["prepared", "first call under capture"])
def test_graph_capture(gpu: torch.device, first: bool) -> None:
    @cuda.jit
    def captured(x: Any, out: Any) -> None:
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + (2 if first else 3)

    op = define(captured)
    x = torch.zeros(1000, device=gpu)
    if not first:
        op.prepare(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(op(x))
    for value in (5.0, 7.0):
        x.fill_(value)
        graph.replay()
        assert y.eq(value + (4 if first else 6)).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second GPU")
def test_the_tensors_device_whatever_is_current(gpu: torch.device) -> None:
    op = define()
    for device in ("cuda:1", "cuda:0"):
        x = torch.full((1000,), math.pi, device=device, requires_grad=True)
        y = op(x.detach())
        assert torch.cuda.current_device() == 0
        assert y.device == x.device
        torch.testing.assert_close(y, x.detach() ** 2)
