"""swiglu, geglu, reglu and glu: values and gradients of every option and dtype, and the corners, against float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ON_CUDA
from gated_units import UNITS, Unit, assert_true, evaluated, every_dtype, every_option, every_unit
from torch import Tensor

import fastops
from fastops import _C
from fastops.cases import Make, by_name
from fastops.cases.inputs import HALVES
from fastops.selftest.accuracy import evaluate, ulps
from fastops.selftest.bits import same_bits
from fastops.selftest.target import levels_here

SWIGLU = UNITS[0]


@every_unit
@every_dtype
@every_option
@pytest.mark.parametrize("shape", [(5, 33), (67, 131)])
def test_two_tensors(
    unit: Unit, dtype: torch.dtype, options: dict[str, Any], shape: tuple[int, ...], device: torch.device
) -> None:
    make = Make(device, dtype)
    args = make(*shape, scale=2.0), make(*shape)
    assert_true(unit, *evaluated(lambda g, u: unit(g, u, **options), lambda g, u: unit.plain(g, u, **options), args))


@every_unit
@every_dtype
@every_option
@pytest.mark.parametrize(
    ("dim", "interleaved"), [(-1, False), (-1, True), (0, False), (1, False), (0, True), (1, True)]
)
def test_one_tensor(
    unit: Unit, dtype: torch.dtype, options: dict[str, Any], dim: int, interleaved: bool, device: torch.device
) -> None:
    both = Make(device, dtype)(6, 34, 70, scale=2.0)
    found, truth = evaluated(
        lambda x: unit.of_both(x, dim=dim, interleaved=interleaved, **options),
        lambda x: unit.plain(*unit.unpack(x, dim, interleaved), **options),
        (both,),
    )
    assert_true(unit, found, truth)


@every_unit
@every_dtype
@every_option
@pytest.mark.parametrize("of_scale", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("packed", [False, True], ids=["two", "one"])
def test_row_scale(
    unit: Unit, dtype: torch.dtype, options: dict[str, Any], of_scale: torch.dtype, packed: bool, device: torch.device
) -> None:
    """Of any dtype beside any other; its gradient has its dtype and is as exact."""
    make = Make(device, dtype)
    for shape in ((3, 5, 33), (67, 131), (2, 4099)):
        parts = make(*shape, scale=2.0), make(*shape)
        tensors = (unit.pack(*parts),) if packed else parts
        scale = make(*shape[:-1], dtype=of_scale)

        def ours(*args: Tensor) -> Tensor:
            call = unit.of_both if packed else unit
            return call(*args[:-1], row_scale=args[-1], **options)

        def plain(*args: Tensor) -> Tensor:
            return unit.plain(*(unit.unpack(args[0]) if packed else args[:-1]), row_scale=args[-1], **options)

        found, truth = evaluated(ours, plain, (*tensors, scale))
        assert found.gradients[-1].dtype == of_scale
        assert_true(unit, found, truth)


@every_unit
@every_dtype
def test_numbers_that_are_the_limit(unit: Unit, dtype: torch.dtype, device: torch.device) -> None:
    """At a bound a gradient is what it is within, beyond it 0, and below it a gate has no bound."""
    limit = 1.25
    above = torch.tensor(limit, dtype=dtype).nextafter(torch.tensor(9.0, dtype=dtype)).item()
    values = [limit, above, -limit, -above, 0.5, -0.5, 3.0, -3.0, 0.0, -0.0]
    for copies in (1, 60):  # on CUDA: an element a thread, and vectors
        gate = torch.tensor(values * copies, dtype=dtype, device=device)[:, None].expand(-1, 10).contiguous()
        up = torch.tensor(values, dtype=dtype, device=device).expand(len(gate), -1).contiguous()
        for scale in (None, torch.ones(len(gate), dtype=dtype, device=device)):

            def run(f: Callable[..., Tensor], scale: Tensor | None = scale) -> Callable[..., Tensor]:
                return lambda g, u: f(g, u, limit=limit, row_scale=None if scale is None else scale.to(u))

            found, truth = evaluated(run(unit), run(unit.plain), (gate, up))
            assert_true(unit, found, truth)
            of_gate, of_up = found.gradients
            assert not of_gate[gate > limit].any()
            assert not of_up[up.abs() > limit].any()
            inner = (gate == limit) & (up != 0)
            assert of_gate[inner].all()
            assert of_up[(up.abs() == limit) & (gate > 0)].all()


@every_unit
def test_the_limit_itself_in_forward_mode(unit: Unit, device: torch.device) -> None:
    """The derivative is that of the kernels, whatever torch.clamp has there."""
    gate = torch.tensor([1.25, 1.25, 2.0, 0.5], dtype=torch.float64, device=device)
    up = torch.tensor([1.25, -1.25, 1.25, 3.0], dtype=torch.float64, device=device)
    inputs, ones = (gate, up), torch.ones_like(gate)
    function = functools.partial(unit, limit=1.25)
    for k, gradient in enumerate(evaluate(function, inputs, (ones,)).gradients):
        tangents = tuple(ones if n == k else 0 * ones for n in range(2))
        torch.testing.assert_close(torch.func.jvp(function, inputs, tangents)[1], gradient)


def test_limit_of_nothing_and_of_infinity(device: torch.device) -> None:
    make = Make(device, torch.float32)
    gate, up = make(5, 33), make(5, 33)
    assert same_bits(fastops.swiglu(gate, up, limit=math.inf), fastops.swiglu(gate, up))
    assert not fastops.swiglu(gate, up, limit=0.0).any()
    assert same_bits(fastops.swiglu(gate, up, limit=2), fastops.swiglu(gate, up, limit=2.0))


@every_dtype
def test_the_activation_of_gpt_oss(dtype: torch.dtype, device: torch.device) -> None:
    """As its model has it: gate and up by turns, bounds on both sides of up, and one added to it."""

    def plain(x: Tensor) -> Tensor:
        gate, up = x[..., ::2], x[..., 1::2]
        gate, up = gate.clamp(min=None, max=7.0), up.clamp(min=-7.0, max=7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))

    def ours(x: Tensor) -> Tensor:
        return fastops.swiglu(x, interleaved=True, alpha=1.702, limit=7.0, offset=1.0)

    found, truth = evaluated(ours, plain, (Make(device, dtype)(3, 17, 360, scale=5.0),))
    assert_true(SWIGLU, found, truth)


@every_unit
@every_dtype
def test_gate_and_up_are_one_tensor(unit: Unit, dtype: torch.dtype, device: torch.device) -> None:
    for shape in ((5, 33), (67, 131)):
        x = Make(device, dtype)(*shape)
        y = unit(x, x, offset=1.0)
        assert same_bits(y, unit(x, x.clone(), offset=1.0))
        leaf, wide = x.clone().requires_grad_(), x.double().requires_grad_()
        (found,) = torch.autograd.grad(unit(leaf, leaf).sum(), leaf)
        (expected,) = torch.autograd.grad(unit.plain(wide, wide).sum(), wide)
        assert ulps(found, expected.cpu()) <= 2 + by_name()[unit.op].bounds[dtype].gradient  # a sum of two


@every_unit
@every_dtype
@pytest.mark.parametrize("limit", [None, 7.0, 0.0])
def test_special_values(unit: Unit, dtype: torch.dtype, limit: float | None, device: torch.device) -> None:
    """NaN stays, also within a limit, and infinities are as torch's; of each value of a gate beside each of up."""
    limits = torch.finfo(dtype)
    values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 7.0, -7.0, 9.0, -1.5, 88.5, -88.5]
    values += [limits.max, limits.min, limits.tiny, -limits.tiny, limits.eps]
    wide = torch.float32 if dtype in HALVES else dtype
    for copies in (1, 20):
        x = torch.tensor(values * copies, dtype=torch.float64, device=device).to(dtype)
        gate = x[:, None].expand(-1, len(values)).contiguous()
        up = x[: len(values)].expand(len(x), -1).contiguous()
        found = evaluate(lambda g, u: unit(g, u, limit=limit), (gate, up), (torch.ones_like(gate),))
        (y,), (of_gate, of_up) = found.outputs, found.gradients
        assert y[gate.isnan() | up.isnan()].isnan().all()
        expected = unit.plain(gate.to(wide), up.to(wide), limit=limit)
        exact = unit.plain(gate.double(), up.double(), limit=limit)
        torch.testing.assert_close(y, torch.where(expected.isfinite(), exact, expected).to(dtype), equal_nan=True)
        derivative = getattr(torch.ops.fastops, f"{unit.op}_backward_reference")
        ordered = (up, gate) if unit.up_first else (gate, up)
        inputs = (t.to(wide) for t in (torch.ones_like(gate), *ordered))
        wanted = derivative(*inputs, -1, False, limit, 0.0, None, *unit.raw, False)[:2]
        for a, b in zip((of_gate, of_up), wanted[::-1] if unit.up_first else wanted, strict=True):
            torch.testing.assert_close(a, b.to(dtype), equal_nan=True)
        if limit is not None:
            assert not of_gate[gate > limit].any()
            assert not of_up[up.abs() > limit].any()


@pytest.mark.parametrize("unit", [u for u in UNITS if u.op != "reglu"])
@pytest.mark.parametrize("dtype", HALVES)
def test_tiny_results_keep_their_digits(unit: Unit, dtype: torch.dtype, device: torch.device) -> None:
    """Results next to the smallest number that there is are rounded once."""
    least = torch.finfo(dtype).smallest_normal
    gate = -torch.linspace(0.5, 12.0 if unit.op == "geglu" else 70.0, 5000, dtype=torch.float64).to(dtype)
    scale = least / unit.act(gate.double()).abs().clamp_min(1e-30)
    up = (scale * torch.linspace(0.01, 2.0, 5000)).to(dtype)
    gate, up = gate[up.isfinite()], up[up.isfinite()]
    args = gate.to(device), up.to(device)
    y = unit(*args)
    truth = unit.plain(gate.double(), up.double())
    assert (y != 0).sum() > 300
    assert ulps(y, truth, relative=True) <= 0.51
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert (y.cpu().double() - truth).abs()[truth.abs() < least].max() <= 0.51 * step


@every_unit
@pytest.mark.parametrize("isa", levels_here())
def test_a_scale_that_is_nan_of_any_bits(unit: Unit, isa: str) -> None:
    before, bits = _C.cpu()["isa"], torch.tensor([0x7F800001, -1], dtype=torch.int32)
    x, scale = Make("cpu", torch.bfloat16)(3, 67), torch.cat([torch.ones(1), bits.view(torch.float32)])
    _C.set_isa(isa)
    try:
        found = unit(x, x, row_scale=scale)
    finally:
        _C.set_isa(before)
    assert found.isnan().all(-1).tolist() == [False, True, True]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_CUDA)])
def test_a_row_too_long_for_its_scale(device: str) -> None:
    x = torch.zeros(1, 1, device=device).expand(1, 2**30 + 1)
    with pytest.raises(RuntimeError, match=r"\[swiglu\] rows beside row_scale must have at most 1073741824 numbers"):
        fastops.swiglu(x, x, row_scale=torch.ones(1, device=device))


@every_unit
def test_without_rows_or_columns(unit: Unit, device: torch.device) -> None:
    for shape in ((0, 4), (3, 0), (0, 0), (2, 0, 3), (0,)):
        for scaled in (False, True):
            gate, up = (torch.randn(shape, device=device, requires_grad=True) for _ in range(2))
            scale = torch.randn(shape[:-1], device=device, requires_grad=True) if scaled else None
            inputs = [gate, up, *([scale] if scale is not None else [])]
            y = unit(gate, up, row_scale=scale)
            assert y.shape == shape
            for x, g in zip(inputs, torch.autograd.grad(y.sum(), inputs), strict=True):
                assert g.shape == x.shape
                assert not g.any()
            both = unit.pack(gate, up).detach().requires_grad_()
            y = unit.of_both(both, row_scale=scale)
            assert y.shape == shape
            assert torch.autograd.grad(y.sum(), both)[0].shape == both.shape
    y = unit(torch.tensor(1.0, device=device), torch.tensor(2.0, device=device))
    assert y.shape == ()
