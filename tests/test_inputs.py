"""Inputs of every layout, size, dtype and value that a user may bring."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch
from table import every_case, function_of
from torch import Tensor

import fastops
from fastops.cases import DTYPES, Case, Make, channels_last, misaligned, stepped
from fastops.selftest.accuracy import evaluate, incoming_gradients, tensors_of
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_unary = pytest.mark.parametrize(
    ("ours", "theirs"),
    [(fastops.square, torch.square), (fastops.relu, torch.relu), (fastops.sigmoid, torch.sigmoid)],
    ids=["square", "relu", "sigmoid"],
)
Unary = Callable[[Tensor], Tensor]


@every_case
def test_expanded_gradient(case: Case, device: torch.device) -> None:
    """``out.sum().backward()`` sends a gradient of strides 0."""
    f = function_of(case, next(case.small_samples), device)

    def gradients(function: Callable[..., Tensor | tuple[Tensor, ...]]) -> list[Tensor | None]:
        inputs = [t.detach().requires_grad_() for t in f.tensors]
        out = function(*inputs)
        sum(o.sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
        return [x.grad for x in inputs]

    torch.testing.assert_close(gradients(f.ours), gradients(f.plain), atol=1e-10, rtol=1e-10)


@every_case
@pytest.mark.parametrize("layout", [misaligned, stepped, lambda t: t.mT.contiguous().mT if t.dim() > 1 else t])
@every_dtype
def test_gradient_of_any_layout(
    case: Case, layout: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device
) -> None:
    names = ("stepped", "stepped_x", "stepped_input", "gelu-stepped_input", "both_stepped")
    sample = next(s for s in case.samples if s.name in names)
    args = sample.args(device, dtype)
    outputs = evaluate(case.function, args).outputs
    dense = incoming_gradients(outputs)
    strided = tuple(layout(g) for g in dense)
    a, b = (evaluate(case.function, args, grads).gradients for grads in (dense, strided))
    assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("op", [fastops.square, fastops.relu, fastops.sigmoid, fastops.axpby])
@pytest.mark.parametrize("n", [64, 1000, 5003])
@every_dtype
def test_any_place_in_a_page(op: Callable[..., Tensor], n: int, dtype: torch.dtype) -> None:
    """CPU loops go down where the output begins close behind an input modulo a page, up elsewhere."""
    values = torch.randn(2, n).to(dtype)
    scalars = (2.0, -3.0) if op is fastops.axpby else ()
    found = []
    page, step = 4096 // dtype.itemsize, 256 // dtype.itemsize
    for start in range(0, page, step):
        rooms = torch.empty(2, n + page, dtype=dtype)
        inputs = [room[start : start + n].copy_(x) for room, x in zip(rooms, values, strict=True)]
        tensors = [x.requires_grad_() for x in (inputs if scalars else inputs[:1])]
        y = op(*tensors, *scalars)
        with torch.no_grad():
            plain = op(*tensors, *scalars)
        found.append([y, plain, *torch.autograd.grad(y, tensors, inputs[1].detach())])
    assert all(same_bits(a, b) for other in found[1:] for a, b in zip(other, found[0], strict=True))


@every_unary
def test_strides_of_the_output(ours: Unary, theirs: Unary, device: torch.device) -> None:
    """A dense input's layout is kept, as torch does."""
    x = torch.randn(2, 3, 4, 5, device=device)
    for y in (x, x.permute(3, 1, 0, 2), x.to(memory_format=torch.channels_last), x[:, ::2], x[:1].expand(2, 3, 4, 5)):
        assert ours(y).stride() == theirs(y).stride()
        torch.testing.assert_close(ours(y), theirs(y))


@every_unary
@every_dtype
def test_special_values(ours: Unary, theirs: Unary, dtype: torch.dtype, device: torch.device) -> None:
    limits = torch.finfo(dtype)
    values = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e4, -1e4, 88.5, -88.5, 104.0, -104.0, 700.0, -745.0]
    values += [limits.max, limits.min, limits.tiny, -limits.tiny, limits.tiny / 2, limits.eps]
    for copies in (1, 7):  # by the vector, and by the scalar at the end
        x = torch.tensor(values * copies, dtype=torch.float64, device=device).to(dtype)
        torch.testing.assert_close(ours(x), theirs(x.double()).to(dtype), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
@pytest.mark.parametrize("numbers", [(), (2, 3), (2.0, 3.0)])
def test_axpby_of_integers(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(3, dtype=dtype, device=device)
    y = fastops.axpby(x, x, *numbers)
    assert y.dtype == torch.get_default_dtype()
    assert (y == sum(numbers or (1, 1))).all()


@pytest.mark.parametrize("number", [math.nan, struct.unpack("f", struct.pack("I", 0x7FFFFFFF))[0]], ids=["nan", "gpu"])
@pytest.mark.parametrize("copies", [1, 40])
@every_dtype
def test_numbers_that_are_nan(number: float, copies: int, dtype: torch.dtype, device: torch.device) -> None:
    """With any bits: a GPU's NaN has them all, and comes by ``tensor.item()``."""
    x = torch.ones(2, copies, dtype=dtype, device=device)
    assert fastops.axpby(x, x, 1.0, number).isnan().all()
    assert fastops.rms_norm(x, (copies,), x[0], weight_offset=number).isnan().all()
    assert fastops.rms_norm(x, (copies,), eps=number).isnan().all()
    assert fastops.layer_norm(x, (copies,), eps=number).isnan().all()


@every_dtype
@pytest.mark.parametrize("copies", [1, 50])
def test_relu_keeps_nan_and_its_gradient(copies: int, dtype: torch.dtype, device: torch.device) -> None:
    tiny = torch.finfo(dtype).tiny * torch.finfo(dtype).eps  # the smallest denormal
    values = [torch.nan, -1.0, 0.0, 2.0, -0.0, torch.inf, -torch.inf, tiny, -tiny]
    x = torch.tensor(values * copies, dtype=torch.float64, device=device).to(dtype)
    x = torch.cat([x, -x[:1]]).requires_grad_()  # NaN of the other sign too
    y = fastops.relu(x)
    grad = torch.arange(1, len(x) + 1, device=device).to(dtype)
    y.backward(grad)
    assert x.grad is not None
    torch.testing.assert_close(y, torch.where(x <= 0, 0, x), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(x.grad, torch.where(x <= 0, 0, grad), rtol=0, atol=0)


@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last, lambda t: t.permute(3, 1, 0, 2), stepped])
def test_relu_keeps_one_bit_an_element(layout: Callable[[Tensor], Tensor], device: torch.device) -> None:
    """In the order of the output's memory, whatever the layout of input and gradient."""
    make = Make(device, torch.float32)
    x, grad = layout(make(2, 5, 3, 7)).requires_grad_(), layout(make(2, 5, 3, 7))
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = fastops.relu(x)
    assert [t.nbytes for t in saved] == [-(-x.numel() // 8)]
    for g in (grad, grad.contiguous()):
        (found,) = torch.autograd.grad(y, x, g, retain_graph=True)
        assert torch.equal(found, torch.where(x > 0, g, 0))
        assert found.stride() == y.stride()


@every_dtype
def test_sigmoid_is_stable(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([1e4, -1e4], dtype=dtype, device=device, requires_grad=True)
    y = fastops.sigmoid(x)
    assert y.tolist() == [1.0, 0.0]
    y.backward(torch.ones_like(y))
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]


NORMS: tuple[Callable[..., Tensor], ...] = (
    fastops.layer_norm,
    fastops.rms_norm,
    lambda x, shape: fastops.add_layer_norm(x, torch.zeros_like(x), shape)[0],
    lambda x, shape: fastops.add_rms_norm(x, torch.zeros_like(x), shape)[0],
)


@every_dtype
def test_norms_keep_bad_values_in_their_row(dtype: torch.dtype, device: torch.device) -> None:
    for norm in NORMS:
        x = Make(device, dtype)(5, 37)
        expected = norm(x, (37,))
        x[1, 3], x[3, 36] = torch.nan, torch.inf
        y = norm(x, (37,))
        assert y[1].isnan().all()
        assert y[3].isnan().any()
        for row in (0, 2, 4):
            assert same_bits(y[row], expected[row])


def test_norms_of_large_half_values(device: torch.device) -> None:
    """Squares that overflow float16 do not overflow here."""
    x = Make(device, torch.float16)(4, 64, scale=2e4)
    ones = torch.ones(4, dtype=torch.float64, device=device)
    for norm in NORMS:
        y = norm(x.clamp(-6e4, 6e4), (64,)).double()
        torch.testing.assert_close(y.square().mean(-1).sqrt(), ones, atol=1e-2, rtol=0)


@every_unary
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int64])
def test_integers(ours: Unary, theirs: Unary, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.arange(12, device=device).to(dtype).view(3, 4)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, 4, dtype=dtype, device=device, requires_grad=True)
    for ours, theirs in (
        (fastops.square, torch.square),
        (fastops.sigmoid, torch.sigmoid),
        (lambda x: fastops.axpby(x, x, 3.0, -1.0), lambda x: 3 * x - x),
    ):
        a, b = ours(x), theirs(x)
        torch.testing.assert_close(a, b)
        grad = torch.randn_like(a)
        torch.testing.assert_close(torch.autograd.grad(a, x, grad), torch.autograd.grad(b, x, grad))


def strides_that_count(x: Tensor) -> list[int]:
    """Of dimensions of one element ``torch.empty_like`` gives meta tensors others than real ones."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


@every_case
def test_meta(case: Case) -> None:
    """Shapes, dtypes and strides without numbers, forward and backward."""
    for sample in case.samples:
        if sample.large:
            continue
        real = evaluate(case.function, sample.args("cpu", torch.float32))
        meta = evaluate(case.function, sample.args("meta", torch.float32))
        for a, b in zip(real.outputs + real.gradients, meta.outputs + meta.gradients, strict=True):
            assert b.is_meta
            assert (a.shape, a.dtype, strides_that_count(a)) == (b.shape, b.dtype, strides_that_count(b)), sample.name


@every_case
def test_devices_do_not_mix(case: Case) -> None:
    """A forgotten meta parameter is an error, not numbers out of nowhere."""
    samples = {sample.name: sample for sample in case.samples}
    sample = samples.get("gelu-wide") or next(s for s in case.samples if not s.small and "no_" not in s.name)
    args = sample.args("cpu", torch.float32)
    if len(tensors_of(args)) < 2:
        pytest.skip("one tensor")
    for k, x in enumerate(args):
        if case.name == "linear" and k == 1:
            continue  # torch's own matrix product takes a meta weight without a word
        if isinstance(x, Tensor):
            with pytest.raises(RuntimeError):
                case.function(*args[:k], x.to("meta"), *args[k + 1 :])


def test_many_dimensions(device: torch.device) -> None:
    """More dimensions than a kernel walks, none of which merge."""
    order = [*range(0, 18, 2), *range(1, 18, 2)]
    x = torch.randn((2,) * 18, device=device).permute(order)
    y = torch.randn((2,) * 18, device=device)
    torch.testing.assert_close(fastops.axpby(x, y, 3.0, -1.0), 3 * x - y)
    torch.testing.assert_close(fastops.relu(x), x.relu())
    ours, theirs = (f(x, (2,), eps=0.5) for f in (fastops.layer_norm, torch.nn.functional.layer_norm))
    torch.testing.assert_close(ours, theirs)


def test_axpby_promotes(device: torch.device) -> None:
    x, y = torch.randn(3, 4, device=device, dtype=torch.float16), torch.randn(4, device=device)
    for a, b in ((x, y), (y, x), (x, y.double()), (x, y.bfloat16()), (x, torch.arange(4, device=device))):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_(b.is_floating_point())
        ours, theirs = fastops.axpby(a, b, 3.0, -1.0), 3 * a - b
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
        ours.sum().backward()
        assert a.grad is not None
        assert a.grad.dtype == a.dtype


COMPLEX_FACTORS = [(2j, 1.0), (0.5, 1 - 1j), (3, 2j), (np.complex64(2j), -1.0), (True, 1j)]


@pytest.mark.parametrize(("alpha", "beta"), COMPLEX_FACTORS)
@pytest.mark.parametrize("y_dtype", [torch.complex64, torch.float32])
def test_axpby_with_complex_factors(alpha: complex, beta: complex, y_dtype: torch.dtype, device: torch.device) -> None:
    """The gradients are torch's, with conjugated factors."""
    x, y = torch.randn(3, 4, device=device, dtype=torch.complex64), torch.randn(4, device=device, dtype=y_dtype)

    def ours(x: Tensor, y: Tensor) -> Tensor:
        return fastops.axpby(x, y, alpha, beta)

    def theirs(x: Tensor, y: Tensor) -> Tensor:
        return complex(alpha) * x + complex(beta) * y

    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        inputs = [t.detach().requires_grad_() for t in (x, y)]
        return torch.autograd.grad((function(*inputs) * (1 + 2j)).real.sum(), inputs)

    torch.compiler.reset()  # each pair of factors is a graph
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for function in (ours, compiled):
        torch.testing.assert_close(function(x, y), theirs(x, y))
        torch.testing.assert_close(gradients(function), gradients(theirs))
    for transformed in (
        lambda f: torch.func.vmap(f, (0, None))(x, y),
        lambda f: torch.func.jvp(f, (x, y), (2 * x, y)),
        lambda f: torch.func.vjp(f, x, y)[1](x),
    ):
        torch.testing.assert_close(transformed(ours), transformed(theirs))
    torch.testing.assert_close(fastops.reference.axpby(x, y, alpha, beta), theirs(x, y))


def test_normalized_shape_of_any_sequence(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, device=device)
    for norm in NORMS:
        expected = norm(x, (3, 4))
        for shape in ([3, 4], torch.Size([3, 4]), x.shape[1:]):
            assert same_bits(norm(x, shape), expected)


@every_case
def test_requires_grad_only_where_it_is_used(case: Case, device: torch.device) -> None:
    f = function_of(case, next(case.small_samples), device)
    out = f.ours(*f.tensors)
    assert not any(o.requires_grad for o in (out if isinstance(out, tuple) else (out,)))


def test_checkpoint(device: torch.device) -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(5, 8, device=device, requires_grad=True)
    w = torch.randn(8, 8, device=device, requires_grad=True)

    def block(x: Tensor) -> Tensor:
        return fastops.linear(fastops.layer_norm(x, (8,), w[0]), w, w[1], "silu")

    for reentrant in (False, True):
        kept = torch.autograd.grad(block(x).sum(), (x, w))
        x.grad = w.grad = None
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        assert same_bits(x.grad, kept[0])
        assert same_bits(w.grad, kept[1])


def test_gradients_across_threads() -> None:
    """Backward runs on the caller's thread for the CPU; several callers at once do not disturb each other."""
    from concurrent.futures import ThreadPoolExecutor

    def work(seed: int) -> Tensor:
        x = Make("cpu", torch.float32, seed)(64, 129).requires_grad_()
        fastops.layer_norm(fastops.sigmoid(x), (129,)).square().sum().backward()
        assert x.grad is not None
        return x.grad

    alone = [work(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, range(8)))
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))


def test_tensor_that_outlived_its_transform(device: torch.device) -> None:
    """torch.func leaves a wrapper behind, through which gradients still go to what was captured."""
    y = torch.randn(3, device=device, requires_grad=True)
    kept: list[Tensor] = []

    def leak(x: Tensor) -> Tensor:
        kept.append(x * y)
        return x.sum()

    torch.func.grad(leak)(torch.randn(3, device=device))
    for ours, theirs in ((fastops.sigmoid, torch.sigmoid), (lambda x: fastops.axpby(x, x), lambda x: 2 * x)):
        a, b = (torch.autograd.grad(f(kept[0]).sum(), y, retain_graph=True) for f in (ours, theirs))
        torch.testing.assert_close(a, b)


def test_sparse_tensors_run_the_composition() -> None:
    x = torch.eye(3).to_sparse()
    for input in (x, x.clone().requires_grad_()):
        y = fastops.relu(input)
        assert y.layout is torch.sparse_coo
        assert torch.equal(y.to_dense(), torch.eye(3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [255, 257, 513, 1000, 5003])
@pytest.mark.parametrize("step", [2, 3])
def test_long_runs_at_a_distance(dtype: torch.dtype, n: int, step: int, device: torch.device) -> None:
    """More elements than are gathered at once, of one operand and of two."""
    make = Make(device, dtype)
    x, y = make(n * step)[::step], make(n * step)[::step]
    assert same_bits(fastops.square(x), fastops.square(x.contiguous()))
    assert same_bits(fastops.axpby(x, y, 2.0, 3.0), fastops.axpby(x.contiguous(), y.contiguous(), 2.0, 3.0))
    assert same_bits(fastops.axpby(x, y[:1], 2.0, 3.0), fastops.axpby(x.contiguous(), y[:1].contiguous(), 2.0, 3.0))
