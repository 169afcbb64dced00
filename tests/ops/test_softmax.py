"""softmax and log_softmax: any dimension, scales, dtypes, and the corners, against float64 and torch's own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from table import assert_close
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops import nn
from fastops.cases import DTYPES, Case, Make, by_name, stepped
from fastops.cases.inputs import HALVES
from fastops.selftest.accuracy import evaluate, incoming_gradients, ulps, wide_copies
from fastops.selftest.bits import same_bits

CASES = [by_name()[name] for name in ("softmax", "log_softmax")]
every_op = pytest.mark.parametrize("case", CASES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
SCALES = (0.125, -1.5, 0.0, 1, 30.0)


def torchs(case: Case, x: Tensor, dim: int, **options: Any) -> Tensor:
    assert case.torch_op is not None
    return case.torch_op(x, dim, **options)


def scaled(case: Case, dim: int, scale: float, dtype: torch.dtype | None = None) -> tuple[Callable[..., Any], ...]:
    """Ours and the plain formula as functions of the tensor."""
    wide = None if dtype is None else torch.float64
    return lambda x: case.function(x, dim, dtype, scale=scale), lambda x: case.plain(x, dim, wide, scale)


@every_op
@every_dtype
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("scale", SCALES)
def test_scale(case: Case, dtype: torch.dtype, dim: int, scale: float, device: torch.device) -> None:
    x = Make(device, dtype)(5, 33, 17)
    ours, plain = scaled(case, dim, scale)
    found = evaluate(ours, (x,))
    truth = evaluate(plain, wide_copies((x,)), wide_copies(incoming_gradients(found.outputs)))
    bound = case.bounds[dtype]
    # What is subtracted is scale·x, whose rounding is that much larger than x's.
    room = max(1.0, abs(scale)) if dtype not in HALVES else 1.0
    assert ulps(found.outputs[0], truth.outputs[0]) <= room * bound.forward
    if abs(scale) < 2:  # a saved output that is rounded to next to 1 leaves a gradient few digits
        assert ulps(found.gradients[0], truth.gradients[0]) <= bound.gradient


@every_op
@every_transform
def test_scaled_transforms(case: Case, transform: Callable[..., Any], device: torch.device) -> None:
    make = Make(device, torch.float64)
    for dim in (0, 2):
        ours, plain = scaled(case, dim, -0.75)
        x, batch = [make(2, 3, 4)], [make(6, 2, 3, 4)]
        assert_close(transform(ours, x, batch), transform(plain, x, batch))


@every_op
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
@pytest.mark.parametrize("scale", [2.0, -0.5])
def test_scaled_finite_differences(case: Case, check: Callable[..., bool], scale: float, device: torch.device) -> None:
    x = Make(device, torch.float64)(3, 4).requires_grad_()
    for dim in (0, 1):
        assert check(scaled(case, dim, scale)[0], (x,))


@every_op
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("dim", [0, 1])
def test_float32_of_a_half_type(case: Case, dtype: torch.dtype, dim: int, device: torch.device) -> None:
    """Values and gradient to float32's own bounds and the half type's rounding; neither makes a float32 copy."""
    x = Make(device, dtype)(37, 129, scale=2.0)
    ours, plain = scaled(case, dim, 0.5, torch.float32)
    found = evaluate(ours, (x,))
    truth = evaluate(plain, wide_copies((x,)), wide_copies(incoming_gradients(found.outputs)))
    assert found.outputs[0].dtype == torch.float32
    assert found.gradients[0].dtype == dtype
    assert ulps(found.outputs[0], truth.outputs[0]) <= case.bounds[torch.float32].forward
    assert ulps(found.gradients[0], truth.gradients[0]) <= 0.51
    with Recorder() as recorder:
        ours(x.requires_grad_()).sum().backward()
    assert recorder.ops == [case.name, f"{case.name}_backward"]
    assert recorder.args[0][0].dtype == dtype


@every_op
@pytest.mark.parametrize("own", [*DTYPES, torch.int64, torch.uint8, torch.bool])
@every_dtype
def test_any_dtype_to_any(case: Case, own: torch.dtype, dtype: torch.dtype, device: torch.device) -> None:
    x = (3 * torch.randn(5, 7, device=device)).to(own)
    learns = x.is_floating_point()
    ours, theirs = x.clone().requires_grad_(learns), x.clone().requires_grad_(learns)
    y, expected = case.function(ours, 1, dtype), torchs(case, theirs, 1, dtype=dtype)
    half = dtype in HALVES or own in HALVES
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(y, expected, **tolerance)
    assert y.dtype == dtype
    if learns:
        grad = torch.randn_like(y)
        (found,), (wanted,) = torch.autograd.grad(y, ours, grad), torch.autograd.grad(expected, theirs, grad)
        assert found.dtype == own
        torch.testing.assert_close(found, wanted, **tolerance)


@every_op
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("n", [1, 5, 64, 1000, 4099])
def test_halves_are_rounded_once(case: Case, dtype: torch.dtype, n: int, device: torch.device) -> None:
    """Each raw op of half-precision tensors by itself, whatever its number of columns."""
    make = Make(device, dtype)
    x, grad = make(7, n, scale=3.0), make(7, n)
    raw = getattr(torch.ops.fastops, case.name), getattr(torch.ops.fastops, f"{case.name}_backward")
    reference = getattr(torch.ops.fastops, f"{case.name}_backward_reference")
    y = raw[0](x)
    assert ulps(y, case.plain(x.cpu().double(), -1), relative=case.relative) <= 0.51
    truth = reference(*wide_copies((grad, y)))
    assert ulps(raw[1](grad, y), truth) <= 0.51


CORNERS = {
    "-inf": [-torch.inf, 1.0, 2.0, -torch.inf],
    "-inf alone": [-torch.inf] * 4,
    "+inf": [torch.inf, 1.0, -torch.inf, 2.0],
    "+inf twice": [torch.inf, torch.inf, 0.0, 1.0],
    "NaN": [torch.nan, 1.0, 2.0, 3.0],
    "NaN behind infinity": [torch.inf, 1.0, 2.0, torch.nan],
    "the largest": [6e4, -6e4, 6e4, 0.0],
    "zeros": [0.0, -0.0, 0.0, -0.0],
}


@every_op
@every_dtype
@pytest.mark.parametrize("values", CORNERS.values(), ids=CORNERS)
@pytest.mark.parametrize("copies", [1, 9, 300])
def test_corners(case: Case, dtype: torch.dtype, values: list[float], copies: int, device: torch.device) -> None:
    """Values and gradients are torch's, and rows beside such a row are as they are alone."""
    x = Make(device, dtype)(5, 4 * copies)
    alone = case.function(x, -1)
    x[2] = torch.tensor(values * copies, dtype=dtype, device=device)
    wide = {"rtol": 2e-2, "atol": 1e-2} if dtype in HALVES else {"rtol": 1e-5, "atol": 1e-6}
    for dim, rows in ((-1, x), (0, x.mT), (0, x.mT.contiguous())):
        ours, theirs = rows.clone().requires_grad_(), rows.double().requires_grad_()
        y, expected = case.function(ours, dim), torchs(case, theirs, dim)
        torch.testing.assert_close(y, expected.to(dtype), equal_nan=True, **wide)
        grad = Make(device, dtype, seed=1)(*rows.shape)
        (found,) = torch.autograd.grad(y, ours, grad)
        (wanted,) = torch.autograd.grad(expected, theirs, grad.double())
        torch.testing.assert_close(found.double(), wanted, equal_nan=True, **wide)
        if dim == -1:
            assert all(same_bits(y[row], alone[row]) for row in (0, 1, 3, 4))


@every_op
def test_scale_of_nothing_and_of_infinity(case: Case, device: torch.device) -> None:
    x = torch.tensor([1.0, 2.0, 4.0, 1.0], device=device)
    y = case.function(x, 0, scale=0.0)
    assert torch.equal(y, torch.full_like(y, 0.25 if case.name == "softmax" else math.log(0.25)))
    assert case.function(x, 0, scale=math.nan).isnan().all()
    assert case.function(x.neg().exp() - 1, 0, scale=math.inf).isnan().all()  # -inf alone
    x[0] = -torch.inf
    assert case.function(x, 0, scale=-1.0).isnan().all()


@every_op
@every_dtype
def test_empty_and_without_dimensions(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    for shape in ((0,), (3, 0), (0, 3), (2, 0, 3)):
        for dim in range(-len(shape), len(shape)):
            x = torch.randn(shape, device=device).to(dtype).requires_grad_()
            y = case.function(x, dim)
            assert y.shape == x.shape
            y.sum().backward()
            assert x.grad is not None
            assert x.grad.shape == x.shape
    for dim in (0, -1):
        x = torch.tensor(3.0, dtype=dtype, device=device, requires_grad=True)
        y = case.function(x, dim)
        assert (y.shape, y.item()) == ((), torchs(case, x, dim).item())
        y.backward()
        assert x.grad is not None
        assert x.grad.item() == 0.0


@every_op
@every_transform
def test_numbers_under_transforms(case: Case, transform: Callable[..., Any], device: torch.device) -> None:
    """A batch of numbers is none of rows."""
    make = Make(device, torch.float64)
    ours, plain = scaled(case, 0, 2.0)
    x, batch = [make()], [make(6)]
    assert_close(transform(ours, x, batch), transform(lambda x: plain(x[None])[0], x, batch))


LAYOUTS: dict[str, Callable[[Make], Tensor]] = {
    "logits[:, :-1]": lambda make: make(3, 9, 65)[:, :-1],
    "logits[..., :-1]": lambda make: make(3, 9, 65)[..., :-1],
    "[B, V, S] of [B, S, V]": lambda make: make(3, 9, 65).transpose(1, 2),
    "[S, B, V] of [B, S, V]": lambda make: make(3, 9, 65).transpose(0, 1),
    "every second": lambda make: make(5, 9, 130)[::2, :, ::2],
    "a column": lambda make: make(33, 7)[:, 3],
    "one for all": lambda make: make(1, 1, 65).expand(3, 9, 65),
    "one number": lambda make: make(1).expand(3, 65),
    "backwards": lambda make: make(9, 5, 17, 3).permute(3, 2, 1, 0),
    "misaligned": lambda make: make(3 * 65 + 1)[1:].view(3, 65),
}


@every_op
@every_dtype
@pytest.mark.parametrize("view", LAYOUTS.values(), ids=LAYOUTS)
def test_views(case: Case, dtype: torch.dtype, view: Callable[[Make], Tensor], device: torch.device) -> None:
    """The bits of the contiguous copy along each dimension, forward and backward, into contiguous results."""
    x = view(Make(device, dtype))
    for dim in range(x.dim()):
        grad = Make(device, dtype, seed=1)(*x.shape)
        found = []
        for source, incoming in itertools.product((x, x.contiguous()), (grad, stepped(grad))):
            leaf = source.detach().requires_grad_()
            y = case.function(leaf, dim)
            (gradient,) = torch.autograd.grad(y, leaf, incoming)
            assert y.is_contiguous()
            found.append((y, gradient))
        for y, gradient in found[1:]:
            assert same_bits(y, found[0][0])
            assert same_bits(gradient, found[0][1])


@every_op
@every_dtype
@pytest.mark.parametrize("dim", [0, 1])
def test_nothing_of_the_callers_is_written(case: Case, dtype: torch.dtype, dim: int, device: torch.device) -> None:
    """Neither the input nor the output that is saved nor the incoming gradient, in memory around a view neither."""
    make = Make(device, dtype)
    room, incoming = make(40, 70), make(40, 70)
    kept = [t.clone() for t in (room, incoming)]
    x, grad = room[1:-1, 1:-1].requires_grad_(), incoming[1:-1, 1:-1]
    y = case.function(x, dim)
    output = y.detach().clone()
    for _ in range(2):
        torch.autograd.grad(y, x, grad, retain_graph=True)
    assert same_bits(y, output)
    assert all(same_bits(a.detach(), b) for a, b in zip((room, incoming), kept, strict=True))


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_output_alone_is_kept(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    x = Make(device, dtype)(5, 33).requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = case.function(x, -1)
    assert [t.data_ptr() for t in saved] == [y.data_ptr()]


@every_op
def test_defaults_are_left_out_of_a_call(case: Case) -> None:
    """Each argument takes a tenth of a microsecond or two."""
    x = torch.randn(3, 4, 5, requires_grad=True)
    for arguments, expected in (
        ({"dim": -1}, ()),
        ({"dim": 2}, ()),
        ({"dim": 0}, (-3,)),
        ({"dim": 2, "scale": 2.0}, (-1, 2.0)),
        ({"dim": 2, "dtype": torch.float32}, ()),
    ):
        with Recorder() as recorder:
            case.function(x, **arguments).sum().backward()  # type: ignore[arg-type]
        assert [args[1 + k :] for k, args in enumerate(recorder.args)] == [expected, expected]


@every_op
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64])
def test_dtypes_without_a_kernel(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    """Refused as by torch; to another dtype they are converted."""
    x = torch.randn(3, 4, device=device).to(dtype)
    with pytest.raises(RuntimeError):
        case.function(x, 0)
    if dtype.is_floating_point:
        assert torch.equal(case.function(x, 0, torch.float64), case.function(x.double(), 0))


@pytest.mark.parametrize("dim", [-4, 3, 100])
@every_op
def test_no_such_dimension(case: Case, dim: int, device: torch.device) -> None:
    """torch's type of error, by each way."""
    x = torch.randn(2, 3, 4, device=device)
    message = rf"^\[{case.name}\] dim must be -3 to 2 for input's 3 dimensions, got {dim}$"
    for way in (
        lambda: case.function(x, dim),
        lambda: case.function(x.clone().requires_grad_(), dim),
        lambda: case.reference(x, dim),
        lambda: case.function(x.to("meta"), dim),
        lambda: torch.func.vmap(lambda x: case.function(x, dim))(x[None]),
    ):
        with pytest.raises(IndexError, match=message):
            way()
    assert torch.equal(case.function(x, torch.tensor([1]).numpy()[0]), case.function(x, 1))


def test_compile_with_dynamic_shapes(device: torch.device) -> None:
    """Two graphs, one of them dynamic, serve all sizes, forward and backward, with each option."""

    def f(x: Tensor) -> Tensor:
        y = fastops.softmax(x, 1, scale=0.5) + fastops.log_softmax(x, -1)
        return y + fastops.softmax(x.bfloat16(), 0, torch.float32)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, backend=counter)
    for shape in ((3, 4, 5), (5, 7, 6), (2, 9, 8)):
        x = torch.randn(shape, device=device)
        for a, b in zip(evaluate(compiled, (x,)).gradients, evaluate(f, (x,)).gradients, strict=True):
            torch.testing.assert_close(a, b)
    assert counter.frame_count == 2


@pytest.mark.parametrize("strict", [True, False])
def test_export_of_any_batch(strict: bool) -> None:
    program = torch.export.export(
        torch.nn.Sequential(nn.Softmax(1, scale=2.0), nn.LogSoftmax(-1)),
        (torch.randn(4, 8),),
        dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=4096)},),
        strict=strict,
    )
    called = [str(node.target) for node in program.graph.nodes if "fastops" in str(node.target)]
    assert called == ["fastops.softmax.default", "fastops.log_softmax.default"]


def test_a_loss_of_both(device: torch.device) -> None:
    """The gradient of a cross-entropy by hand: p less the target, over the number of rows."""
    make = Make(device, torch.float64)
    logits, target = make(6, 11).requires_grad_(), torch.arange(6, device=device)
    loss = -fastops.log_softmax(logits, 1)[target, target].mean()
    loss.backward()
    expected = (fastops.softmax(logits.detach(), 1) - torch.nn.functional.one_hot(target, 11)) / 6
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, expected)


@every_op
@every_dtype
def test_raw_ops_convert_as_their_references(case: Case, dtype: torch.dtype, device: torch.device) -> None:
    """The public function converts first, so that autograd sees it; a raw op is called with any dtype too."""
    make = Make(device, torch.float32)
    for own in DTYPES:
        x = make(5, 7, dtype=own)
        y, expected = (
            getattr(torch.ops.fastops, f"{case.name}{which}")(x, 0, 2.0, dtype) for which in ("", "_reference")
        )
        assert y.dtype == expected.dtype == dtype
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if {own, dtype} & set(HALVES) else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(y, expected, **tolerance)
        grad = make(5, 7, dtype=dtype)
        found, wanted = (
            getattr(torch.ops.fastops, f"{case.name}_backward{which}")(grad, y, 0, 2.0, own)
            for which in ("", "_reference")
        )
        assert found.dtype == wanted.dtype == own
        torch.testing.assert_close(found, wanted, **tolerance)
