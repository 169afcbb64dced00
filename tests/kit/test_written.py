"""What a kernel writes is told to autograd; what has no memory to read or write is refused before a launch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from common import needs_compiler
from torch import Tensor

from fastops import kit
from fastops.kit import KitError, cpp_op, cuda_kernel, numba_kernel
from fastops.kit.schema import Schema

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's, on prototypes of nested and quantized tensors

FILL = "void fill(T* x, int64_t n, double a) { for (int64_t i = 0; i < n; ++i) x[i] = T(a); }"
COPY = "void copy(const T* x, T* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = x[i]; }"


def filler(device: torch.device):  # type: ignore[no-untyped-def]
    if device.type == "cpu":
        return cpp_op(FILL, "fill", "T* x, int64 n, double a")
    return cuda_kernel("__global__ " + FILL, "fill", "T* x, int64 n, double a", grid=1, block=1)


def copier(device: torch.device):  # type: ignore[no-untyped-def]
    if device.type == "cpu":
        return cpp_op(COPY, "copy", "const T* x, T* y, int64 n")
    return cuda_kernel("__global__ " + COPY, "copy", "const T* x, T* y, int64 n", grid=1, block=1)


@needs_compiler
@pytest.mark.parametrize("view", [Tensor.detach, lambda s: s.detach()[1:], lambda s: s.detach().view(3, 1)])
def test_what_was_saved_and_is_overwritten_is_torchs_error(
    device: torch.device, view: Callable[[Tensor], Tensor]
) -> None:
    w = torch.ones(3, requires_grad=True, device=device)
    s = w * 2
    loss = s.square().sum()
    part = view(s)
    filler(device)(part, part.numel(), 4.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@needs_compiler
def test_what_is_read_alone_may_be_saved(device: torch.device) -> None:
    w = torch.ones(3, requires_grad=True, device=device)
    s = w * 2
    y = torch.empty(3, device=device)
    copier(device)(s.detach(), y, 3)
    assert (s._version, y._version) == (0, 1)
    s.square().sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [8, 8, 8]


@needs_compiler
def test_every_tensor_that_is_written_counts() -> None:
    op = cpp_op(
        "void f(float* a, const float* b, float* c, double* d) {}", "f", "float* a, const float* b, float* c, double* d"
    )
    a, b, c = torch.ones(2), torch.ones(2), torch.ones(2)
    op(a, b, c, None)
    assert (a._version, b._version, c._version) == (1, 0, 1)


@needs_compiler
def test_a_function_that_throws_has_written() -> None:
    source = '#include <stdexcept>\nvoid f(float* y) { y[0] = 3; throw std::runtime_error("late"); }'
    y = torch.zeros(1)
    with pytest.raises(RuntimeError, match="late"):
        cpp_op(source, "f", "float* y")(y)
    assert (y.item(), y._version) == (3, 1)


@needs_compiler
@pytest.mark.parametrize("arguments", [(2.5, 1.0), (2, "a"), (2**70, 1.0)], ids=str)
def test_what_is_refused_has_written_nothing(arguments: tuple[object, ...]) -> None:
    y = torch.zeros(2)
    with pytest.raises(KitError):
        filler(torch.device("cpu"))(y, *arguments)
    assert y._version == 0


@needs_compiler
def test_inference_tensors_have_no_version(device: torch.device) -> None:
    with torch.inference_mode():
        y = torch.zeros(2, device=device)
        filler(device)(y, 2, 3.0)
    filler(device)(y[:1], 1, 4.0)
    assert y.tolist() == [4, 3]


@needs_compiler
def test_a_function_under_torch_compile_still_runs() -> None:
    op = filler(torch.device("cpu"))

    def step(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        op(y, y.numel(), 3.0)
        return x + y

    assert torch.compile(step, backend="aot_eager")(torch.ones(3)).tolist() == [4, 4, 4]


@needs_compiler
def test_an_op_that_writes_to_its_input_does_not_go_unseen() -> None:
    fill = filler(torch.device("cpu"))

    def careless(x: Tensor) -> Tensor:
        fill(x, x.numel(), 4.0)
        return x.clone()

    op = kit.op("my::careless(Tensor x) -> Tensor", cpu=careless, backward=lambda grad: grad)
    w = torch.ones(3, requires_grad=True)
    s = w * 2
    loss = s.square().sum() + op(s).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_numba_kernels_outputs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = torch.zeros(3)
    kernel, launched = whole_kernel(monkeypatch, lambda x: buffer)
    assert kernel(torch.ones(3)) is buffer
    assert (buffer._version, launched) == (1, [1])


def test_a_numba_kernel_writes_to_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, launched = whole_kernel(monkeypatch, lambda x: x.view(3))
    with pytest.raises(KitError, match=r"^\[square\] fake= must return new tensors, got out in the memory of x"):
        kernel(torch.ones(3))
    assert not launched


def whole_kernel(monkeypatch: pytest.MonkeyPatch, fake: Callable[[Tensor], Tensor]):  # type: ignore[no-untyped-def]
    """A kernel of Numba's whose launch is counted, so that no GPU is needed."""
    launched: list[int] = []
    monkeypatch.setattr(numba_kernel._C, "kit_launch", lambda *given: launched.append(1))
    ready = numba_kernel._Ready(0, lambda arguments: b"")  # type: ignore[arg-type]
    monkeypatch.setattr(numba_kernel.NumbaKernel, "_prepare", lambda *given: ready)
    launch = numba_kernel.Launch("square", ("x", "out"), 1, 1, 0)
    schema = Schema("my::square(Tensor x) -> Tensor out")
    kernel = numba_kernel.NumbaKernel(lambda x, out: None, {}, ("x", "out"), schema, launch, fake, True)  # type: ignore[arg-type]
    return kernel, launched


def freed() -> Tensor:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    return x


NO_MEMORY = {
    "zeros": (
        lambda: torch._efficientzerotensor(3),
        "a tensor with memory of its own, got zeros that have none, .*clone",
    ),
    "freed": (freed, "a tensor with memory of its own, got one whose storage is empty"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]), "a dense tensor, got a nested one"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(3)], layout=torch.jagged),
        "a plain tensor, got NestedTensor",
    ),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "a dense tensor, got layout torch._mkldnn"),
    "coo": (lambda: torch.ones(3).to_sparse(), "a dense tensor, got layout torch.sparse_coo"),
    "csr": (lambda: torch.ones(3, 3).to_sparse_csr(), "a dense tensor, got layout torch.sparse_csr"),
    "meta": (lambda: torch.ones(3, device="meta"), "on a CPU device, got meta"),
    "negative": (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, "contiguous|without a pending sign"),
}


@needs_compiler
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("place", ["x", "y"])
@pytest.mark.parametrize("kind", NO_MEMORY)
def test_tensors_that_lie_elsewhere_are_refused(kind: str, place: str, contiguous: bool) -> None:
    op = cpp_op(COPY, "copy", "const T* x, T* y, int64 n", contiguous=contiguous)
    make, message = NO_MEMORY[kind]
    arguments = {"x": torch.ones(3), "y": torch.zeros(3), "n": 3} | {place: make()}
    with pytest.raises(KitError, match=rf"^\[copy\] {place} must be ({message})"):
        op(*arguments.values())
    assert all(x._version == 0 for x in arguments.values() if isinstance(x, Tensor) and x.layout is torch.strided)


@needs_compiler
def test_quantized_and_complex_tensors_are_refused() -> None:
    op = cpp_op(COPY, "copy", "const T* x, T* y, int64 n")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    for x in (quantized, torch.ones(3, dtype=torch.complex64).conj()):
        with pytest.raises(KitError, match=rf"^\[copy\] x must have dtype a real one, got {x.dtype}"):
            op(x, torch.zeros(3), 3)


@needs_compiler
def test_tensors_of_a_transform_are_refused() -> None:
    op = cpp_op(COPY, "copy", "const T* x, T* y, int64 n")

    def run(x: Tensor) -> Tensor:
        y = torch.zeros(3)
        op(x, y, 3)
        return y

    with pytest.raises(KitError, match=r"^\[copy\] x must be a tensor with memory of its own, got one of torch.func's"):
        torch.vmap(run)(torch.ones(2, 3))
    with pytest.raises(KitError, match=r"^\[copy\] x must be without grad"):
        torch.func.grad(lambda x: run(x).sum())(torch.ones(3))


@needs_compiler
def test_an_op_around_a_kernel_takes_zeros_and_pending_signs() -> None:
    copy = copier(torch.device("cpu"))

    def run(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        copy(x, y, x.numel())
        return y

    op = kit.op("my::copied(Tensor x) -> Tensor", cpu=run, reference=lambda x: x.clone(), backward=lambda grad: grad)
    assert op(torch._efficientzerotensor(3)).tolist() == [0, 0, 0]
    assert op(torch.tensor([1 + 2j]).conj().imag).tolist() == [-2]
    with pytest.raises((KitError, TypeError, RuntimeError)):
        op(torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]))


FORMULA = kit.elementwise("doubled(x)", "2 * x + 1")
SUM = kit.reduction("total(x)", map="x", reduce="a + b")


@pytest.mark.parametrize("op", [FORMULA, SUM], ids=["elementwise", "reduction"])
@pytest.mark.parametrize("kind", ["nested", "jagged", "mkldnn", "csr", "quantized"])
def test_formulas_refuse_what_is_not_dense(op: Callable[[Tensor], Tensor], kind: str) -> None:
    quantized = lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)  # noqa: E731
    make = NO_MEMORY[kind][0] if kind in NO_MEMORY else quantized
    if op is FORMULA and kind == "jagged":  # in torch's functions
        assert torch.equal(op(make()).values(), 2 * make().values() + 1)
        return
    with pytest.raises(TypeError, match=r"^\[(doubled|total)\] x must be dense, got "):
        op(make())


def test_formulas_take_zeros_and_pending_signs() -> None:
    assert FORMULA(torch._efficientzerotensor(3)).tolist() == [1, 1, 1]
    assert SUM(torch._efficientzerotensor(3)).item() == 0
    assert FORMULA(torch.tensor([1 + 2j]).conj().imag).tolist() == [-3]
