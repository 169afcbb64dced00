"""linear where torch's product takes the bias, what torch's own call takes beside matrices, and tanh's form of gelu."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch import Tensor
from transforms import every_transform

import fastops
from fastops.cases import DTYPES, Make
from fastops.cases.linear import PLAIN_ACTIVATIONS, TORCH_ACTIVATIONS
from fastops.ops.linear import ACTIVATIONS

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


@pytest.fixture
def product_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("fastops.ops.linear"), "_product_adds", lambda *_: True)


def arguments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(3, 4), (5, 4), (5,)]
    return [torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_() for size in sizes]


@every_activation
def test_derivatives(activation: str, product_adds: None) -> None:
    def linear(*args: Tensor) -> Tensor:
        return fastops.linear(*args, activation)

    with Recorder() as recorder:
        linear(*arguments()).sum().backward()
    assert recorder.ops == ["linear_epilogue", "linear_epilogue_backward"]
    assert all(args[-1] is True for args in recorder.args)
    assert torch.autograd.gradcheck(linear, arguments(), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(linear, arguments())


@every_activation
@every_transform
@pytest.mark.parametrize("first", ["input", "bias"])
def test_transforms(activation: str, transform: Callable[..., Any], first: str, product_adds: None) -> None:
    order = (0, 1, 2) if first == "input" else (2, 1, 0)

    def ours(*args: Tensor) -> Tensor:
        return fastops.linear(*(args[k] for k in order), activation)

    def plain(*args: Tensor) -> Tensor:
        return fastops.reference.linear(*(args[k] for k in order), activation)

    x, w, finite = (t.detach() for t in arguments())
    b = finite.clone()
    if activation in ("relu", "sigmoid"):  # of the others inf·0 is NaN
        b[1] = -torch.inf
    batch = [torch.stack([x, -x]), torch.stack([w, -w]), torch.stack([finite, b])]
    inputs, batches = [(x, w, b)[k] for k in order], [batch[k] for k in order]
    torch.testing.assert_close(transform(ours, inputs, batches), transform(plain, inputs, batches))


@every_dtype
@pytest.mark.parametrize("bias", [True, False])
def test_relu_passes_the_gradient_of_nan_on(bias: bool, dtype: torch.dtype, device: torch.device) -> None:
    """As torch's does."""
    x = torch.ones(2, 8, dtype=dtype, device=device)
    w = torch.tensor([torch.nan, 1.0, -1.0, torch.inf], device=device).to(dtype)[:, None] * torch.ones_like(x[0])
    grad = torch.arange(1, 9, device=device).to(dtype).view(2, 4)
    b = torch.zeros_like(w[:, 0], requires_grad=True) if bias else None
    leaves = [w.requires_grad_(), *([] if b is None else [b])]
    found = torch.autograd.grad(fastops.linear(x, w, b, "relu"), leaves, grad)
    expected = torch.autograd.grad(torch.relu(torch.nn.functional.linear(x, w, b)), leaves, grad)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("module", [fastops, fastops.reference], ids=["kernels", "reference"])
def test_a_weight_of_one_dimension(
    activation: str | None, leading: tuple[int, ...], module: Any, device: torch.device
) -> None:
    """As torch's: one feature, whose dimension the result does not have."""
    make = Make(device, torch.float64)
    x, w = make(*leading, 5).requires_grad_(), make(5).requires_grad_()
    found = module.linear(x, w, None, activation)
    expected = TORCH_ACTIVATIONS[activation](torch.nn.functional.linear(x, w))
    assert found.shape == expected.shape
    grad = torch.ones_like(expected)
    results = [(out, *torch.autograd.grad(out, (x, w), grad)) for out in (found, expected)]
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bias", [(), (1,), (4,), (3, 4), (3, 1)])
@pytest.mark.parametrize("compiled", [False, True])
def test_without_an_activation_a_bias_broadcasts(bias: tuple[int, ...], compiled: bool) -> None:
    """As torch's, whose call it is."""
    x, w, b = torch.randn(3, 5), torch.randn(4, 5), torch.randn(bias)
    torch._dynamo.reset()
    linear = torch.compile(fastops.linear, fullgraph=True, backend="eager") if compiled else fastops.linear
    assert torch.equal(linear(x, w, b), torch.nn.functional.linear(x, w, b))


def test_whole_numbers_without_an_activation() -> None:
    x, w = torch.arange(15).reshape(3, 5), torch.arange(20).reshape(4, 5)
    assert torch.equal(fastops.linear(x, w), torch.nn.functional.linear(x, w))


def test_out_of_memory_is_not_renamed() -> None:
    x = torch.ones(1).expand(2**40, 1)
    with pytest.raises(RuntimeError, match="allocat") as error:
        fastops.linear(x, torch.ones(2**20, 1))
    assert "[linear]" not in str(error.value)


@pytest.mark.parametrize("module", [fastops, fastops.reference], ids=["kernels", "reference"])
@every_dtype
def test_gelu_tanh_of_what_is_large_or_no_number(dtype: torch.dtype, module: Any, device: torch.device) -> None:
    """torch's own, but for the derivative at large numbers, of which torch's square overflows."""
    limits = torch.finfo(dtype)
    numbers = [torch.nan, torch.inf, -torch.inf, 300.0, -300.0, limits.max, limits.min, 0.0, -0.0]
    x = torch.tensor(numbers, dtype=dtype, device=device)[:, None].requires_grad_()
    one, zero = torch.ones_like(x[:1]), torch.zeros_like(x[0])
    y = module.linear(x, one, zero, "gelu_tanh")
    expected = torch.nn.functional.gelu(x.double(), approximate="tanh").to(dtype)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    (slopes,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    if module is fastops:  # the plain composition's derivative at infinity is the limit
        assert slopes[:3].isnan().all()
    assert slopes[3:, 0].tolist() == [1.0, 0.0, 1.0, 0.0, 0.5, 0.5]
    (second,) = torch.autograd.grad(slopes[3:].sum(), x)
    assert second[3:7].eq(0).all()


@every_dtype
def test_gelu_tanh_keeps_the_digits_of_small_results(dtype: torch.dtype, device: torch.device) -> None:
    """Where 1 + tanh(z) has few of them, or none: of float32 torch's is 0 from -5.3 on."""
    x = torch.linspace(-10, -3, 701, device=device).to(dtype)[:, None].requires_grad_()
    wide = x.detach().double().requires_grad_()
    y, truth = fastops.linear(x, torch.ones_like(x[:1]), None, "gelu_tanh"), PLAIN_ACTIVATIONS["gelu_tanh"](wide)
    slopes = [torch.autograd.grad(out.sum(), leaf)[0] for out, leaf in ((y, x), (truth, wide))]
    limits, most = (
        torch.finfo(dtype),
        {torch.float32: 16, torch.float64: 256}.get(dtype, 1),
    )  # of float64 the truth's own
    for found, expected in ((y, truth), slopes):
        normal = expected.abs() > limits.tiny
        error = (found.double() - expected).abs()
        assert (error[normal] / expected.abs()[normal]).max() <= most * limits.eps
        assert (error[~normal] <= limits.tiny * limits.eps).all()


@pytest.mark.parametrize("activation", ["sigmoid", "gelu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "features", "out", "adds"),
    [
        (torch.float32, 1, 96, 33, False),
        (torch.float32, 2, 96, 33, True),
        (torch.float32, 16, 96, 128, True),
        (torch.float32, 17, 96, 128, False),
        (torch.float32, 4, 1030, 128, False),
        (torch.float32, 5, 1030, 128, True),
        (torch.float32, 5, 1030, 127, False),
        (torch.float32, 511, 96, 128, False),
        (torch.float32, 512, 96, 128, True),
        (torch.float32, 512, 96, 63, False),
        (torch.float32, 2048, 512, 1023, False),
        (torch.float32, 2048, 512, 1024, True),
        (torch.float64, 16, 96, 129, False),
        (torch.bfloat16, 16, 96, 128, False),
        (torch.bfloat16, 16, 96, 132, True),
        (torch.float16, 16, 97, 128, True),
    ],
)
def test_where_the_product_adds(
    cuda: torch.device, dtype: torch.dtype, rows: int, features: int, out: int, adds: bool, activation: str
) -> None:
    sizes = [(rows, features), (out, features), (out,)]
    inputs = [torch.randn(size, device=cuda).div(8).to(dtype).requires_grad_() for size in sizes]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    with Recorder() as recorder:
        output = fastops.linear(*inputs, activation)
    assert recorder.ops == ["linear_epilogue"]
    assert (recorder.args[0][-1] is True) == adds
    expected = getattr(torch.nn.functional, activation)(torch.nn.functional.linear(*wide))
    grad = torch.randn_like(output)
    found = torch.autograd.grad(output, inputs, grad)
    truths: tuple[Any, ...] = (expected, *torch.autograd.grad(expected, wide, grad.double()))
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-4)
    for actual, truth in zip((output, *found), truths, strict=True):
        assert (actual.double() - truth).norm() <= tolerance * truth.norm()
