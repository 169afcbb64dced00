"""CUDA kernels that are compiled at run time, on the GPU: streams, threads, graphs, devices, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from common import needs_nvrtc

from fastops import _C
from fastops.kit import CompileError, KitError, cuda_kernel, nvrtc

pytestmark = needs_nvrtc

SHIFT = """\
template <class U>
__global__ void shift(const U* x, U* y, int64_t n) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) y[i] = x[i] + opmath_t<U>(1);
}
"""
SIGNATURE = "const T* x, T* y, int64 n"
SPIN = """\
__global__ void spin(float* y, int64_t cycles) {
  for (int64_t start = clock64(); clock64() - start < cycles;) {}
  *y += 1;
}
"""
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.uint8,
]


def shift(**more: object):  # type: ignore[no-untyped-def]
    return cuda_kernel(SHIFT, "shift<T>", SIGNATURE, **{"grid": "ceil(n / 256)"} | more)  # type: ignore[arg-type]


def numbers(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return (torch.randn(count, device=device) * 10).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 255, 256, 257, 100_000])
def test_values(cuda: torch.device, dtype: torch.dtype, count: int) -> None:
    x = numbers(count, dtype, cuda)
    y = torch.empty_like(x)
    shift()(x, y, count)
    torch.testing.assert_close(y, x + 1, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_as_torch_rounds_them(cuda: torch.device, dtype: torch.dtype) -> None:
    source = """
    __global__ void widen(const T* x, float* y) { int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i]; }
    __global__ void narrow(const float* x, T* y) { int i = blockIdx.x * blockDim.x + threadIdx.x; y[i] = x[i]; }
    """
    every = torch.arange(2**16, device=cuda).to(torch.uint16).view(dtype)
    wide, back = torch.empty(2**16, device=cuda), torch.empty_like(every)
    cuda_kernel(source, "widen", "const T* x, float* y", grid=256)(every, wide)
    torch.testing.assert_close(wide, every.float(), rtol=0, atol=0, equal_nan=True)
    between = torch.cat([wide[:-1] + (wide[1:] - wide[:-1]) / 2, wide[:1]])
    for x in (wide, between, torch.randn(2**16, device=cuda) * 1e-5):
        cuda_kernel(source, "narrow", "const float* x, T* y", grid=256)(x, back)
        torch.testing.assert_close(back, x.to(dtype), rtol=0, atol=0, equal_nan=True)


def test_every_type_arrives(cuda: torch.device) -> None:
    words = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double", "T"]
    types = [w if w in ("bool", "float", "double", "T") else f"{w}_t" for w in words]
    signature = ", ".join(f"{w} a{k}" for k, w in enumerate(words)) + ", double* y, const T* x"
    parameters = ", ".join(f"{t} a{k}" for k, t in enumerate(types)) + ", double* y, const T* x"
    # 64-bit integers are halved, so that a double holds them exactly but would show a lost upper or lower word.
    body = " ".join(f"y[{k}] = {f'double(a{k} >> 11)' if '64' in w else f'a{k}'};" for k, w in enumerate(words))
    values = [True, -128, -(2**15), -(2**31), -(2**63) + 2**12, 255, 2**16 - 1, 2**32 - 1, 2**64 - 1, 0.25, 1 / 3, 1.5]
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        y = torch.empty(len(words), dtype=torch.float64, device=cuda)
        kernel = cuda_kernel(f"__global__ void every({parameters}) {{ {body} }}", "every", signature, grid=1, block=1)
        kernel(*values, y, torch.empty(1, dtype=dtype, device=cuda))
        expected = [v >> 11 if "64" in w else v for v, w in zip(values, words, strict=True)]
        assert y.tolist() == expected


def test_none_is_a_null_pointer(cuda: torch.device) -> None:
    source = "__global__ void f(const float* b, T* y) { *y = b ? *b : -1; }"
    kernel = cuda_kernel(source, "f", "const float* b, T* y", grid=1, block=1)
    y = torch.empty(1, device=cuda)
    kernel(None, y)
    assert y.item() == -1
    kernel(torch.ones(1, device=cuda), y)
    assert y.item() == 1


def test_three_dimensions(cuda: torch.device) -> None:
    source = """__global__ void f(int* y) {
      int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      y[block * 24 + thread] = 1000 * block + thread;
    }"""
    y = torch.zeros(30 * 24, dtype=torch.int32, device=cuda)
    cuda_kernel(source, "f", "int* y", grid=(5, lambda y: 3, "numel(y) // 360"), block=(2, 3, 4))(y)
    expected = [1000 * block + thread for block in range(30) for thread in range(24)]
    assert y.tolist() == expected


@pytest.mark.parametrize("words", [100, 12 * 1024, 24 * 1024])
def test_dynamic_shared_memory(cuda: torch.device, words: int) -> None:
    limit = torch.cuda.get_device_properties(cuda).shared_memory_per_block_optin
    if 4 * words > limit:
        pytest.skip(f"a block has at most {limit} bytes of shared memory here")
    source = """__global__ void reverse(const T* x, T* y, int n) {
      extern __shared__ int kept[];
      for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = kept[n - 1 - i];
    }"""
    kernel = cuda_kernel(source, "reverse", "const T* x, T* y, int n", grid=1, shared="4 * n")
    for count in (words, words // 2, words):
        x = torch.arange(count, dtype=torch.int32, device=cuda)
        y = torch.empty_like(x)
        kernel(x, y, count)
        assert torch.equal(y, x.flip(0))


def test_too_much_shared_memory(cuda: torch.device) -> None:
    kernel = shift(shared=2**20)
    x = torch.zeros(1, device=cuda)
    with pytest.raises(RuntimeError, match=r"^\[shift\] reserving 1048576 bytes of shared memory a block: "):
        kernel(x, x.clone(), 1)
    torch.cuda.synchronize()
    shift()(x, x, 1)  # the error is not the next launch's
    assert x.item() == 1


def test_too_many_registers_for_a_block(cuda: torch.device) -> None:
    source = "__global__ __launch_bounds__(32) void f(float* y) { *y = 1; }"
    y = torch.zeros(1, device=cuda)
    with pytest.raises(RuntimeError, match=r"^\[f\] launching on device 0: "):
        cuda_kernel(source, "f", "float* y", grid=1, block=64)(y)
    cuda_kernel(source, "f", "float* y", grid=1, block=32)(y)
    assert y.item() == 1


def test_nothing_is_launched_for_an_empty_grid(cuda: torch.device) -> None:
    x = torch.empty(0, device=cuda)
    shift()(x, x, 0)
    torch.cuda.synchronize()


@pytest.mark.slow
def test_more_than_32_bits_of_elements(cuda: torch.device) -> None:
    count = 2**31 + 100
    if torch.cuda.mem_get_info(cuda)[0] < 3 * count:
        pytest.skip("needs 6.5 GB of GPU memory")
    x = torch.zeros(count, dtype=torch.int8, device=cuda)
    shift()(x, x, count)
    assert x[[0, 2**31 - 1, 2**31, -1]].tolist() == [1] * 4
    assert x.sum(dtype=torch.int64).item() == count


def test_prepared_again_compiles_nothing(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = shift()
    kernel.prepare(torch.float32)
    monkeypatch.setattr(nvrtc, "compile", None)
    kernel.prepare(torch.float32, device=cuda)
    with pytest.raises(TypeError):
        kernel.prepare(torch.float64)


# Streams, threads, graphs


def test_the_current_stream(cuda: torch.device) -> None:
    spin = cuda_kernel(SPIN, "spin", "float* y, int64 cycles", grid=1, block=1)
    spin.prepare()
    shift().prepare(torch.float32)
    stream = torch.cuda.Stream(cuda)
    y, z = torch.zeros(1, device=cuda), torch.empty(1, device=cuda)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        spin(y, 4_000_000_000)  # long enough for a busy machine
        busy = not stream.query()
        shift()(y, z, 1)  # behind it on the same stream
        still_busy = not stream.query()
    assert busy and still_busy  # noqa: PT018
    assert torch.cuda.default_stream(cuda).query()
    stream.synchronize()
    assert (y.item(), z.item()) == (1, 2)


def test_side_streams_see_what_torch_wrote_there(cuda: torch.device) -> None:
    kernel = shift()
    streams = [torch.cuda.Stream(cuda) for _ in range(4)]
    outputs = []
    for k, stream in enumerate(streams * 8):
        with torch.cuda.stream(stream):
            x = torch.full((1 << 20,), float(k), device=cuda)
            for _ in range(4):
                x = x * 1.0
            y = torch.empty_like(x)
            kernel(x, y, x.numel())
            outputs.append(y + 0)
    torch.cuda.synchronize()
    for k, y in enumerate(outputs):
        assert torch.equal(y, torch.full_like(y, k + 1.0)), k


BACKWARD_FIRST = """
import sys, torch
from fastops.kit import cuda_kernel
kernel = cuda_kernel(sys.argv[1], "shift<T>", "const T* x, T* y, int64 n", grid="ceil(n / 256)")
if sys.argv[2] == "prepared":
    kernel.prepare(torch.float32, device=0)

class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        kernel(grad, y, 1000)  # nothing of torch's before it: an allocation would make the context
        return y

x, y = torch.ones(1000, device="cuda", requires_grad=True), torch.empty(1000, device="cuda")
Shift.apply(x).backward(torch.full_like(x, 2))
assert x.grad.eq(3).all()
"""


@pytest.mark.parametrize("when", ["prepared", "unprepared"])
def test_backward_is_the_first_launch_on_its_thread(cuda: torch.device, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", BACKWARD_FIRST, SHIFT, when], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_thread_without_a_context(cuda: torch.device) -> None:
    kernel = shift()
    x, y = torch.zeros(10, device=cuda), torch.zeros(10, device=cuda)
    torch.cuda.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            kernel(x, y, 10)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert y.tolist() == [1] * 10


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "first call under capture"])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_graph_capture(cuda: torch.device, prepared: bool, mode: str) -> None:
    # A source of its own for each case, so that its first use, when it is loaded, is the one under capture.
    source = SHIFT + f"// {mode} {prepared}\n"
    kernel = cuda_kernel(source, "shift<T>", SIGNATURE, grid="ceil(n / 256)", shared=60_000)
    if prepared:
        kernel.prepare(torch.float32)
    x, y = torch.zeros(1000, device=cuda), torch.empty(1000, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        kernel(x, y, 1000)
        kernel(y, y, 1000)
    for value in (5.0, 7.0):
        x.fill_(value)
        graph.replay()
        assert y.eq(value + 2).all()


def test_backward_under_capture(cuda: torch.device) -> None:
    kernel = cuda_kernel(SHIFT + "// backward\n", "shift<T>", SIGNATURE, grid="ceil(n / 256)")

    class Shift(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x.clone()

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            y = torch.empty_like(grad)
            kernel(grad.contiguous(), y, y.numel())
            return y

    x = torch.ones(100, device=cuda, requires_grad=True)
    seed = torch.ones(100, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (gradient,) = torch.autograd.grad(Shift.apply(x), x, seed)
    seed.fill_(4)
    graph.replay()
    assert gradient.eq(5).all()


# Devices

second_gpu = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is no second GPU")


@second_gpu
def test_the_tensors_device_whatever_is_current(cuda: torch.device) -> None:
    kernel = shift()
    for _ in range(2):
        for device in ("cuda:1", "cuda:0"):
            x, y = torch.ones(1000, device=device), torch.empty(1000, device=device)
            kernel(x, y, 1000)
            assert torch.cuda.current_device() == 0
            assert y.eq(2).all()


@second_gpu
def test_mixed_devices(cuda: torch.device) -> None:
    with pytest.raises(KitError, match=r"all tensors must be on one device, got cuda:0 and cuda:1"):
        shift()(torch.zeros(1, device="cuda:0"), torch.zeros(1, device="cuda:1"), 1)


# What is refused, before anything is launched


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": None}, "n must be an integer, got NoneType"),
        ({"n": 1.0}, "n must be an integer, got float"),
        ({"n": 2**63}, f"n must fit int64, got {2**63}"),
        ({"x": torch.zeros(4)}, "x must be on a CUDA device, got cpu"),
        ({"y": torch.zeros(4, dtype=torch.float16)}, "y must have dtype torch.float32 by T, got torch.float16"),
        ({"x": torch.zeros(4, dtype=torch.complex64)}, "x must have dtype a real one, got torch.complex64"),
        ({"x": torch.zeros(4, 2)[:, 0]}, r"x must be contiguous, got strides \[2\] of shape \[4\]"),
        ({"x": torch.zeros(4, requires_grad=True)}, "x must be without grad"),
        ({"x": None, "y": None}, "at least one tensor of type T must not be None"),
        ({"more": 1}, r"expected 3 arguments \(const T\* x, T\* y, int64 n\), got 4"),
    ],
)
def test_wrong_arguments(cuda: torch.device, changes: dict[str, object], message: str) -> None:
    if "x must be on a CUDA device" not in message:
        for name, value in changes.items():
            if isinstance(value, torch.Tensor):
                moved = (
                    torch.empty(8, dtype=value.dtype, device=cuda)[::2] if not value.is_contiguous() else value.to(cuda)
                )
                changes = changes | {name: moved.detach().requires_grad_(value.requires_grad)}
    y = torch.zeros(4, device=cuda)
    arguments = {"x": torch.ones(4, device=cuda), "y": y, "n": 4} | changes
    with pytest.raises(KitError, match=rf"^\[shift\] {message}"):
        shift()(*arguments.values())
    assert y.eq(0).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"block": 2048}, r"block must be integers from 0 to \[1024, 1024, 64\], got \[2048, 1, 1\]"),
        ({"block": (64, 64)}, r"block must have at most 1024 threads, got \(64, 64, 1\)"),
        ({"block": 0}, "block must have at least one thread"),
        ({"grid": (1, 65536)}, r"grid must be integers from 0 to \[2147483647, 65535, 65535\]"),
        ({"grid": "n - 5"}, r"grid must be integers from 0 to .*, got \[-1, 1, 1\]"),
        ({"grid": lambda x, y, n: n / 2}, r"grid must be integers .*, got \[2.0, 1, 1\]"),
        ({"grid": "n // (n - 4)"}, "grid cannot be computed: ZeroDivisionError"),
        ({"grid": "size(x, 3)"}, "grid cannot be computed: IndexError"),
        ({"shared": "-n"}, "shared must be integers"),
    ],
)
def test_wrong_sizes(cuda: torch.device, sizes: dict[str, object], message: str) -> None:
    x, y = torch.ones(4, device=cuda), torch.zeros(4, device=cuda)
    with pytest.raises(KitError, match=rf"^\[shift\] {message}"):
        shift(**sizes)(x, y, 4)
    assert y.eq(0).all()


def test_a_source_that_does_not_compile(cuda: torch.device) -> None:
    x = torch.zeros(4, device=cuda)
    kernel = cuda_kernel(SHIFT.replace("x[i] +", "foo(x[i]) +"), "shift<T>", SIGNATURE, grid=1)
    for _ in range(2):
        with pytest.raises(CompileError, match=r'shift\(4\): error: identifier "foo" is undefined'):
            kernel(x, x, 4)


def test_an_image_of_another_architecture(cuda: torch.device) -> None:
    other = "sm_75" if torch.cuda.get_device_capability(cuda)[0] > 7 else "sm_90"
    image = shift().compile(other, torch.float32)
    with pytest.raises(RuntimeError, match=r"^\[(kit|shift)\] (loading|finding) "):
        _C.kit_kernel(_C.kit_load(image.cubin), image.names["shift<T>"], 0, "shift", [0, 8, 16])


def test_an_image_that_is_none(cuda: torch.device) -> None:
    with pytest.raises(RuntimeError, match=r"^\[(kit|shift)\] (loading|finding) "):
        _C.kit_kernel(_C.kit_load(b"no image at all" + bytes(1000)), "shift", 0, "shift", [])


def test_a_kernel_that_the_image_lacks(cuda: torch.device) -> None:
    image = _C.kit_load(shift().compile(nvrtc.arch_of(0), torch.float32).cubin)
    with pytest.raises(RuntimeError, match=r"^\[shift\] finding kernel nothing: "):
        _C.kit_kernel(image, "nothing", 0, "shift", [])


def test_cudas_own_headers(cuda: torch.device, tmp_path: Path) -> None:
    if not nvrtc.include_folders():
        pytest.skip("CUDA's headers are not installed beside NVRTC")
    source = """
    #include <cuda_fp16.h>
    #include <cuda_bf16.h>
    __global__ void f(const uint16_t* x, uint16_t* y) {
      const __half* h = reinterpret_cast<const __half*>(x);
      y[threadIdx.x] = __half_as_ushort(__hadd(h[threadIdx.x], __float2half(1.0f)));
    }
    """
    x = torch.randn(32, dtype=torch.float16, device=cuda)
    y = torch.empty_like(x)
    kernel = cuda_kernel(source, "f", "const uint16* x, uint16* y", grid=1, block=32)
    kernel(x.view(torch.uint16), y.view(torch.uint16))
    torch.testing.assert_close(y, x + 1, rtol=0, atol=0)


def test_a_build_without_cuda() -> None:
    if _C.build_info()["cuda_version"]:
        pytest.skip("this build has CUDA")
    with pytest.raises(RuntimeError, match=r"^\[kit\] this build has no CUDA kernels: python -m fastops.info"):
        _C.kit_load(b"")
