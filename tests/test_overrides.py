"""torch's own functions by our kernels: fastops.enable()."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops
from fastops import _C
from fastops.cases import by_name
from fastops.selftest import checks
from fastops.selftest.aten_case import aten_case
from fastops.selftest.aten_checks import ATEN_CHECKS
from fastops.selftest.bits import same_bits
from fastops.selftest.target import Path, Target

FUNCTIONS = tuple(_C.overridden())
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "layer_norm": lambda x, w: F.layer_norm(x, (x.shape[-1],), w, w),
    "rms_norm": lambda x, w: F.rms_norm(x, (x.shape[-1],), w),
    "softmax": lambda x, w: F.softmax(x * w, -1),
    "log_softmax": lambda x, w: F.log_softmax(x * w, 0),
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture(autouse=True)
def torch_again() -> Iterator[None]:
    yield
    assert not any(map(_C.is_enabled, FUNCTIONS))


CPU = torch.device("cpu")


def inputs(dtype: torch.dtype = torch.float64, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(device, dtype) for shape in ((6, 33), (33,)))
    return x.requires_grad_(), w.requires_grad_()


def gradients(y: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [y.detach(), *torch.autograd.grad((y * y).sum(), inputs)]


def test_every_function_has_a_call() -> None:
    assert set(FUNCTIONS) == set(CALLS)


@pytest.mark.parametrize("check", ATEN_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_function
def test_check(name: str, dtype: torch.dtype, check: checks.Check, device: torch.device) -> None:
    """Those of ``selftest --aten``, at the level in use."""
    case = aten_case(by_name()[name], device)
    assert case is not None
    for outcome in check(Target(case, dtype, Path(device, device.type), quick=True, aten=True)):
        assert outcome.ok, outcome


@every_function
def test_a_forward_inside_and_a_backward_outside(name: str, device: torch.device) -> None:
    x, w = inputs(device=device)
    expected = gradients(CALLS[name](x, w), x, w)
    with fastops.enabled(name):
        inside = CALLS[name](x, w)
    torch.testing.assert_close(gradients(inside, x, w), expected)
    outside = CALLS[name](x, w)
    with fastops.enabled(name):
        torch.testing.assert_close(gradients(outside, x, w), expected)


@every_function
def test_second_derivatives_and_forward_mode(name: str, device: torch.device) -> None:
    x, w = inputs(device=device)
    with fastops.enabled(name):
        assert torch.autograd.gradgradcheck(CALLS[name], (x, w))
        _, tangent = torch.func.jvp(lambda t: CALLS[name](t, w), (x,), (torch.ones_like(x),))
    _, expected = torch.func.jvp(lambda t: CALLS[name](t, w), (x,), (torch.ones_like(x),))
    torch.testing.assert_close(tangent, expected)


@every_function
def test_vmap_and_autocast(name: str, device: torch.device) -> None:
    x, w = inputs(torch.float32, device)
    batch = torch.stack([x.detach(), 2 * x.detach()])
    expected = torch.stack([CALLS[name](row, w) for row in batch])
    with fastops.enabled(name), torch.no_grad():
        torch.testing.assert_close(torch.vmap(CALLS[name], (0, None))(batch, w), expected.detach())
        with torch.autocast(device.type, dtype=torch.bfloat16):
            out = CALLS[name](x, w)
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        torch.testing.assert_close(out, CALLS[name](x, w))


@every_function
def test_compiled_functions_keep_inductors_own_kernels(name: str) -> None:
    x, w = inputs(torch.float32)
    with fastops.enabled(name):
        compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager_decomp_partition")
        torch.testing.assert_close(gradients(compiled(x, w), x, w), gradients(CALLS[name](x, w), x, w))


def test_modules_run_our_kernels(device: torch.device) -> None:
    x, _ = inputs(torch.float32, device)
    for module, ours in (
        (torch.nn.LayerNorm(33), lambda m: fastops.layer_norm(x, (33,), m.weight, m.bias)),
        (torch.nn.RMSNorm(33), lambda m: fastops.rms_norm(x, (33,), m.weight)),
        (torch.nn.Softmax(-1), lambda m: fastops.softmax(x, -1)),
    ):
        module.to(device)
        with fastops.enabled():
            assert same_bits(module(x), ours(module))


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_float32_of_a_half_type(name: str, cuda: torch.device) -> None:
    """On CUDA aten converts in its kernel, both ways."""
    x = torch.randn(5, 65, device=cuda, dtype=torch.bfloat16, requires_grad=True)
    with fastops.enabled(name):
        y = getattr(F, name)(x, -1, dtype=torch.float32)
        found = gradients(y, x)
    expected = gradients(getattr(fastops, name)(x, -1, dtype=torch.float32), x)
    assert all(map(same_bits, found, expected))


def test_a_graph_of_a_step(cuda: torch.device) -> None:
    norm, x = torch.nn.LayerNorm(768, device=cuda), torch.randn(64, 768, device=cuda, requires_grad=True)

    def step() -> list[Tensor]:
        return gradients(norm(x), x, norm.weight, norm.bias)

    expected = step()
    with fastops.enabled("layer_norm"):
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        graph.replay()
    torch.testing.assert_close(found, expected)


def test_other_calls_go_where_they_went(device: torch.device) -> None:
    z = torch.randn(3, 4, dtype=torch.complex64, device=device, requires_grad=True)
    expected = gradients(F.rms_norm(z, (4,)).abs(), z)
    with fastops.enabled():
        torch.testing.assert_close(gradients(F.rms_norm(z, (4,)).abs(), z), expected)
        with pytest.raises(RuntimeError, match=r"Given normalized_shape|its message is on stderr"):
            F.layer_norm(torch.randn(3, 4, device=device), (5,))
        assert F.layer_norm(torch.randn(0, 4, device=device), (4,)).shape == (0, 4)
        assert F.softmax(torch.randn(3, 0, device=device), -1).shape == (3, 0)


def test_gradients_of_rows_that_ours_do_not_take_have_the_eps_of_their_forward() -> None:
    x, w = inputs(torch.float32)
    wide = w.detach().double().requires_grad_()
    truth = gradients(F.rms_norm(x.double(), (33,), wide, 0.5), x, wide)
    with fastops.enabled("rms_norm"):
        found = gradients(torch.ops.aten._fused_rms_norm(x, [33], wide, 0.5)[0], x, wide)
    torch.testing.assert_close(found, truth, check_dtype=False, rtol=1e-5, atol=1e-5)


def test_calls_count() -> None:
    fastops.enable("layer_norm")
    with fastops.enabled("layer_norm", "rms_norm"):
        assert set(fastops.capabilities().overrides) == {"layer_norm", "rms_norm"}
    assert fastops.capabilities().overrides == {"layer_norm": "aten"}
    assert "layer_norm in place of aten" in str(fastops.capabilities())
    fastops.disable("layer_norm")
    fastops.disable("layer_norm")
    assert fastops.capabilities().overrides == {}


def test_an_exception_ends_the_block() -> None:
    with pytest.raises(KeyError), fastops.enabled():
        raise KeyError
    assert not any(map(_C.is_enabled, FUNCTIONS))


def test_on_top_of_another_override_and_back() -> None:
    calls = []
    library = torch.library.Library("aten", "IMPL")
    before = torch.library.get_kernel(torch.ops.aten.native_layer_norm.default, "CPU")

    def another(*arguments: object) -> object:
        calls.append(arguments)
        return before.call_boxed(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments)

    library.impl("native_layer_norm", another, "CPU", allow_override=True)
    try:
        x = torch.randn(3, 4)
        with fastops.enabled("layer_norm") as enabled:
            assert "was: aten" not in str(enabled)
            F.layer_norm(x, (4,))
            assert not calls
            F.layer_norm(torch.randn(0, 4), (4,))  # none of ours
            assert len(calls) == 1
        F.layer_norm(x, (4,))
        assert len(calls) == 2
    finally:
        library._destroy()


def test_what_is_printed() -> None:
    with fastops.enabled("softmax") as enabled:
        where = ", ".join(_C.override_keys()).lower()
        assert str(enabled) == f"softmax {where} (was: aten)"


def test_unknown_names() -> None:
    for call in (fastops.enable, fastops.disable):
        with pytest.raises(ValueError, match=r"\[enable\] a function must be one of layer_norm, .*, got 'conv2d'"):
            call("softmax", "conv2d")


def in_threads(count: int, *targets: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target) for target in targets for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_block_switches_every_thread() -> None:
    """As the docstring says."""
    x = torch.randn(64, 1000)
    results: list[Tensor] = []
    aten, ours = F.softmax(x, -1), fastops.softmax(x, -1)
    assert not torch.equal(aten, ours), "the input must tell the kernels apart"
    with fastops.enabled("softmax"):
        in_threads(1, lambda: results.append(F.softmax(x, -1)))
    in_threads(1, lambda: results.append(F.softmax(x, -1)))
    assert torch.equal(results[0], ours)
    assert torch.equal(results[1], aten)
    assert "for the whole process while the block runs" in str(fastops.enabled.__doc__)


def test_threads_that_switch_while_others_compute() -> None:
    """Where all is enabled throughout: PyTorch does not protect a kernel that is replaced from its callers."""
    x, w = inputs(torch.float32)
    expected = {name: call(x, w).detach() for name, call in CALLS.items()}
    until, wrong = time.monotonic() + 1.5, []

    def switch() -> None:
        while time.monotonic() < until:
            with fastops.enabled():
                pass

    def compute() -> None:
        while time.monotonic() < until:
            for name, call in CALLS.items():
                y = call(x, w)
                y.sum().backward()
                if not torch.allclose(y, expected[name], atol=1e-5):
                    wrong.append(name)

    with fastops.enabled():
        in_threads(4, switch, compute)
    assert not wrong


def test_threads_that_switch() -> None:
    x, w = inputs(torch.float32)
    expected = {name: call(x, w).detach() for name, call in CALLS.items()}

    def switch() -> None:
        for _ in range(100):
            with fastops.enabled("layer_norm"), fastops.enabled():
                pass

    in_threads(4, switch)
    for name, call in CALLS.items():
        assert torch.equal(call(x, w), expected[name])
