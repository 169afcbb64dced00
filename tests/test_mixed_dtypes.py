"""Norms of tensors of different dtypes against float64: values, dtypes of the results, gradients, torch.compile."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fastops

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
N = 24


def close(got: Tensor, truth: Tensor, what: str) -> None:
    """Within two roundings of the dtype, and of what float32 sums leave."""
    eps = max(torch.finfo(got.dtype).eps, 4e-7 if got.dtype != torch.float64 else 1e-15)
    torch.testing.assert_close(
        got.double(), truth, rtol=2 * eps, atol=8 * eps * truth.abs().max().item() + 1e-30, msg=lambda m: f"{what}: {m}"
    )


def tensor(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device).to(dtype).requires_grad_()


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, (N,), w, b)


def rms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, (N,), w, 1e-5)


ALONE: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "layer_norm": (lambda x, w, b: fastops.layer_norm(x, (N,), w, b), layer),
    "rms_norm": (lambda x, w, b: fastops.rms_norm(x, (N,), w, 1e-5), rms),
}
ADDED: dict[str, tuple[Callable[..., Any], Callable[..., Tensor]]] = {
    "add_layer_norm": (lambda x, r, w, b: fastops.add_layer_norm(x, r, (N,), w, b), layer),
    "add_rms_norm": (lambda x, r, w, b: fastops.add_rms_norm(x, r, (N,), w, 1e-5), rms),
}


def whole_graph(f: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=False)


@pytest.mark.parametrize("op", ["swiglu", "geglu", "reglu", "glu"])
def test_integers_of_two_dtypes_are_no_floating_point(op: str) -> None:
    first, second = torch.ones(2, 3, dtype=torch.int32), torch.ones(2, 3, dtype=torch.uint8)
    call = (lambda: fastops.glu(first, gate=second)) if op == "glu" else lambda: getattr(fastops, op)(first, second)
    with pytest.raises(RuntimeError, match=rf"\[{op}\] .* must be floating point, got torch.int32"):
        call()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("op", ALONE)
def test_parameters_of_any_dtype(op: str, compiled: bool, device: torch.device) -> None:
    ours, truth = ALONE[op]
    for of_x, of_w, of_b in itertools.product(DTYPES, DTYPES, DTYPES[1:2] if compiled else DTYPES):
        x, w, b = (
            tensor(5, N, dtype=of_x, device=device),
            tensor(N, dtype=of_w, device=device),
            tensor(N, dtype=of_b, device=device),
        )
        what = f"{of_x} {of_w} {of_b}"
        torch._dynamo.reset()
        y = (whole_graph(ours) if compiled else ours)(x, w, b)
        assert y.dtype == of_x, what  # as torch's rms_norm
        wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
        expected = truth(*wide)
        close(y, expected, what)
        gradient = torch.randn(5, N, device=device).to(of_x)
        inputs = (x, w, b) if op == "layer_norm" else (x, w)
        found = torch.autograd.grad(y, inputs, gradient)
        of_truth = torch.autograd.grad(expected, wide[: len(inputs)], gradient.double())
        for t, g, true in zip(inputs, found, of_truth, strict=True):
            assert g.dtype == t.dtype, what
            close(g, true, what)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("op", ADDED)
def test_a_residual_of_any_dtype(op: str, compiled: bool, device: torch.device) -> None:
    ours, norm = ADDED[op]
    for of_x, of_r, of_w in itertools.product(DTYPES, DTYPES, DTYPES[1:2] if compiled else DTYPES[1:3]):
        x, r = (tensor(5, N, dtype=dtype, device=device) for dtype in (of_x, of_r))
        w, b = (tensor(N, dtype=of_w, device=device) for _ in range(2))
        what = f"{of_x} {of_r} {of_w}"
        torch._dynamo.reset()
        y, s = (whole_graph(ours) if compiled else ours)(x, r, w, b)
        assert (y.dtype, s.dtype) == (of_x, of_r), what
        promoted = torch.promote_types(of_x, of_r)
        assert torch.equal(s, (x.to(promoted) + r.to(promoted)).to(of_r)), what
        # What is normalised is the sum as it was rounded.
        wide_s = s.detach().double().requires_grad_()
        wide_w, wide_b = (t.detach().double().requires_grad_() for t in (w, b))
        expected = norm(wide_s, wide_w, wide_b)
        close(y, expected, what)
        grad_y, grad_s = (torch.randn(5, N, device=device).to(dtype) for dtype in (of_x, of_r))
        found = torch.autograd.grad((y, s), (x, r, w), (grad_y, grad_s))
        of_s, of_weight = torch.autograd.grad(expected, (wide_s, wide_w), grad_y.double())
        for t, g, true in zip((x, r, w), found, (of_s + grad_s, of_s + grad_s, of_weight), strict=True):
            assert g.dtype == t.dtype, what
            close(g, true, what)


@pytest.mark.parametrize("op", ADDED)
def test_real_fake_and_reference_agree(op: str, device: torch.device) -> None:
    """Shapes and dtypes of every output of the raw ops, gradients among them."""
    raw, layered = torch.ops.fastops, "layer" in op
    for of_x, of_r, of_w in itertools.product(DTYPES, DTYPES, DTYPES):
        x, r = (torch.randn(3, N, device=device).to(dtype) for dtype in (of_x, of_r))
        parameters = [torch.randn(N, device=device).to(of_w) for _ in range(2 if layered else 1)]
        real = getattr(raw, f"{op}_forward")(x, r, *parameters)
        fake = getattr(raw, f"{op}_forward")(*(t.to("meta") for t in (x, r, *parameters)))
        plain = getattr(raw, f"{op}_forward_reference")(x, r, *parameters)
        gradients = [getattr(raw, f"{op}_backward{suffix}") for suffix in ("", "_reference")]
        inputs = (real[0], real[1], real[1], real[2], *parameters)
        back, plain_back = (f(*inputs) for f in gradients)
        fake_back = gradients[0](*(t.to("meta") for t in inputs))
        for a, b, c in zip((*real, *back), (*fake, *fake_back), (*plain, *plain_back), strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype) == (c.shape, c.dtype), (of_x, of_r, of_w)


def test_cpu_autocast_beside_a_float32_residual() -> None:
    """A product under autocast is bfloat16, the residual stream beside it stays float32."""
    x, r, w = torch.randn(4, N), torch.randn(4, N), torch.randn(N)
    with torch.autocast("cpu", torch.bfloat16):
        branch = F.linear(x, torch.eye(N))
        y, s = fastops.add_rms_norm(branch, r, (N,), w)
    assert (branch.dtype, y.dtype, s.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    close(y, F.rms_norm((branch.double() + r.double()), (N,), w.double(), torch.finfo(torch.float32).eps), "")


@pytest.mark.parametrize("op", ADDED)
@pytest.mark.parametrize("dtypes", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), DTYPES[2:]])
def test_sums_are_contiguous(op: str, dtypes: tuple[torch.dtype, torch.dtype], device: torch.device) -> None:
    """As the fake says, also of rows that are permuted."""
    x, r = (torch.randn(5, 4, 8, device=device).to(dtype).transpose(0, 1) for dtype in dtypes)
    f = getattr(fastops, op)
    for real, fake in zip(f(x, r, (8,)), f(x.to("meta"), r.to("meta"), (8,)), strict=True):
        assert real.stride() == fake.stride() == (40, 8, 1)
    torch.library.opcheck(getattr(torch.ops.fastops, op), (x, r), test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((), (3,)), ((), ())])
def test_axpby_of_two_dtypes_compiles(shapes: tuple[tuple[int, ...], ...]) -> None:
    for of_x, of_y in itertools.product(DTYPES, DTYPES):
        x, y = torch.randn(shapes[0]).to(of_x), torch.randn(shapes[1]).to(of_y)
        torch._dynamo.reset()
        found = whole_graph(fastops.axpby)(x, y)
        assert found.dtype == fastops.axpby(x, y).dtype == torch.result_type(x, y)
