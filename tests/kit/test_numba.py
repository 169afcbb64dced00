"""kit.numba_op: scalar Python functions as elementwise ops."""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, func

from fastops import kit
from fastops.kit import linker, nvrtc, program

numba = pytest.importorskip("numba", reason='Numba is not installed: pip install "fastops[numba]"')


def lambert(x: Any) -> Any:
    """W of W exp(W) = x: a loop, which no expression has."""
    w = x / (1 + x)
    for _ in range(20):
        e = math.exp(w)
        w -= (w * e - x) / (e * (w + 1))
    return w


def lambert_backward(grad: Tensor, out: Tensor) -> Tensor:
    return grad / ((1 + out) * torch.exp(out))


@kit.numba_op
def damped(x: Any, y: Any) -> Any:
    return math.exp(-x * x) * y


def test_values_of_every_dtype(device: torch.device) -> None:
    op = kit.numba_op(lambert, backward=lambert_backward)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = (torch.rand(3, 700, device=device) * 3).to(dtype)
        w = op(x)
        assert w.dtype == dtype
        torch.testing.assert_close(w, torch.tensor([lambert(v) for v in x.flatten().tolist()]).view(3, 700).to(w))
    assert "compiled" in op.explain(x)


def test_broadcast_and_strides(device: torch.device) -> None:
    x, y = torch.randn(4, 5, device=device).t(), torch.randn(4, device=device, dtype=torch.float64)
    torch.testing.assert_close(damped(x, y), torch.exp(-x * x) * y, check_dtype=True)


def test_gradient_derived_from_the_source() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(damped, (x, y))
    assert torch.autograd.gradgradcheck(damped, (x, y))
    kit.check(damped, (x.detach(), y.detach()[None].expand(3, 4)))


def test_copies() -> None:
    assert pickle.loads(pickle.dumps(damped)) is copy.deepcopy(damped) is damped


def test_gradient_given() -> None:
    x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    op = kit.numba_op(lambert, backward=lambert_backward)
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x)
    square = kit.numba_op(lambda x: x * x, backward=lambda grad, x: 2 * x * grad)
    assert torch.autograd.gradcheck(square, x)


def test_what_was_prepared_is_compiled_at_no_call(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = [kit.numba_op(lambda x, y: x * y + 17), kit.numba_op(lambert, backward=lambert_backward)]
    for op in ops:
        op.prepare(torch.bfloat16, torch.float32, device=device)
    monkeypatch.delattr(program.Program, "compile")
    monkeypatch.delattr(program.Program, "add_cuda_kernel")
    for op in ops:
        for dtype in (torch.bfloat16, torch.float32):
            tensors = [torch.ones(4, device=device, dtype=dtype, requires_grad=True) for _ in op.tensors]
            op(*tensors).sum().backward()


def test_no_derivative_is_an_error() -> None:
    x = torch.rand(3, requires_grad=True)
    with pytest.raises(kit.KitError, match=r"^\[lambert\] has no derivative: give kit.numba_op backward="):
        kit.numba_op(lambert)(x).sum().backward()
    with pytest.raises(kit.KitError, match=r"^\[lambert\] forward mode .* need an expression"):
        torch.func.jvp(kit.numba_op(lambert), (x.detach(),), (x.detach(),))


def test_definitions_that_cannot_be_served() -> None:
    with pytest.raises(kit.KitError, match=r"backward may read grad, out, x, got a parameter y"):
        kit.numba_op(lambert, backward=lambda grad, y: grad)
    with pytest.raises(kit.KitError, match="1 to 8 numbers, got 0"):
        kit.numba_op(lambda: 1.0)
    with pytest.raises(TypeError, match=r"^\[damped\] expected 2 tensors, x, y, got 1"):
        damped(torch.ones(1))
    unknown = kit.numba_op(lambda x: torch.relu(x))
    with pytest.raises(RuntimeError, match="Numba does not compile it"):
        unknown(torch.ones(1))


def test_without_numba_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(kit.NoCompiler, match=r'Numba is missing .* pip install "fastops(-cu\d+)?\[numba\]"'):
        kit.numba_op(lambert)


CUDA_COMPILERS = importlib.util.find_spec("numba_cuda") and linker._found() and nvrtc.available()


@pytest.mark.skipif(not CUDA_COMPILERS, reason="numba-cuda, nvJitLink or NVRTC is not installed")
@pytest.mark.parametrize("dtypes", [(2, 2), (3, 3), (1, 1), (0, 0)], ids=["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("variant", [0, 1, 3, 5])
def test_cuda_kernels_link_without_a_gpu(dtypes: tuple[int, int], variant: int) -> None:
    program = kit.numba_op(lambert)._program
    image = program.cuda_image(dtypes, variant, "sm_90")
    assert image.startswith(b"\x7fELF")
    assert b"kit_kernel" in image
    assert program.symbol.encode() not in image  # inlined


def test_threads_make_the_first_call_together(tmp_path: Path) -> None:
    """In a process of its own: what a thread overwrote, another one called."""
    code = """
import threading, torch
from fastops import kit

@kit.numba_op(backward=lambda grad, x: 2 * grad * x)
def square(x):
    total = 0.0
    for _ in range(2):
        total += x * x / 2
    return total

x = torch.randn(1000)
results = []
threads = [threading.Thread(target=lambda: results.extend(square(x) for _ in range(50))) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(results) == 200 and all(torch.equal(r, results[0]) for r in results)
"""
    (tmp_path / "program.py").write_text(code)
    environment = os.environ | {"FASTOPS_CACHE_DIR": str(tmp_path)}
    result = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_function_that_raises_is_refused() -> None:
    def checked(x: float) -> float:
        if x < 0:
            raise ValueError("negative")
        return x

    def asserting(x: float) -> float:
        assert x >= 0
        return x

    for function in (checked, asserting):
        with pytest.raises(kit.KitError, match=r"for all numbers, such as NaN, got .(raise|assert) "):
            kit.numba_op(function)


class Pair(NamedTuple):
    a: float
    b: float


def expression_of_two(x: float) -> Any:
    return math.sin(x), math.cos(x)


def loop_of_two(x: float) -> Any:
    for _ in range(2):
        x = x * 1.5
    return math.sin(x), math.cos(x)


def loop_of_three(x: float) -> Any:
    for _ in range(2):
        x = x * 1.5
    return x, 2 * x, 3


def one_in_a_tuple(x: float) -> Any:
    return (math.sin(x),)


def named(x: float) -> Any:
    for _ in range(2):
        x = x * 1.5
    return Pair(x, 2 * x)


def listed(x: float) -> Any:
    for _ in range(2):
        x = x * 1.5
    return [x, 2 * x]


def one_or_two(x: float) -> Any:
    if x > 0:
        return x
    return x, 2 * x


def one_or_two_by_a_name(x: float) -> Any:
    result = (x, 2 * x) if x > 0 else x
    return result


def two_or_three(x: float) -> Any:
    for _ in range(2):
        x = x * 1.5
    if x > 0:
        return x, x
    return x, x, x


def one_or_none(x: float) -> Any:
    if x > 0:
        return x


def two_by_another(x: float) -> Any:
    return divmod(x, 2.0)


def two_of_torch(x: Any) -> Any:
    return torch.relu(x), x


@pytest.mark.parametrize(
    "function",
    [
        *(
            expression_of_two,
            loop_of_two,
            loop_of_three,
            one_in_a_tuple,
            named,
            listed,
            one_or_two,
            one_or_two_by_a_name,
        ),
        *(two_or_three, one_or_none, two_by_another, two_of_torch),
    ],
    ids=lambda function: function.__name__,
)
def test_a_function_of_other_than_one_number_is_refused(function: Any) -> None:
    """A kernel has one output: of two numbers it would store the first, or nothing."""
    for backward in (None, lambda grad: grad):
        with pytest.raises(
            kit.KitError, match=rf"^\[{function.__name__}\] expected a function that returns one number"
        ):
            kit.numba_op(function, backward=backward)


def test_truths_and_integers_are_numbers() -> None:
    x = torch.tensor([-1.0, 2.0])
    assert kit.numba_op(lambda x: x > 0)(x).tolist() == [0, 1]
    assert kit.numba_op(lambda x: int(x) // 2 if x > 0 else -3)(x).tolist() == [-3, 1]


def test_a_backward_calls_its_own_op() -> None:
    def backward(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return times(grad, b), times(grad, a)

    @kit.numba_op(backward=backward)
    def times(a: Any, b: Any) -> Any:
        total = 0.0
        for _ in range(2):
            total += a * b / 2
        return total

    x = torch.randn(2, 3, dtype=torch.float64)
    for transform in (func.hessian, lambda f, at: func.jacrev(func.jacrev(f, at), at)):
        found, expected = (
            transform(lambda a, b: (f(a, a) + f(b, a)).sum(), (0, 1))(*x)  # noqa: B023
            for f in (times, torch.mul)
        )
        torch.testing.assert_close(found, expected)
