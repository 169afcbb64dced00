"""swiglu, geglu, reglu and glu: derivatives of every kind, torch.compile, autocast, dtypes, what is kept, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gated_units import UNITS, Unit, every_option, every_unit
from recorder import Recorder
from table import assert_close, batch_of
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from transforms import every_transform

import fastops
from fastops.cases import DTYPES, Make
from fastops.selftest.accuracy import evaluate
from fastops.selftest.bits import same_bits

F64 = torch.float64
Functions = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[tuple[int, ...], ...]]


def _two(unit: Unit) -> Functions:
    return (
        lambda g, u: unit(g, u, limit=1.5, offset=0.5),
        lambda g, u: unit.plain(g, u, limit=1.5, offset=0.5),
        ((3, 4), (3, 4)),
    )


def _scaled(unit: Unit) -> Functions:
    return (
        lambda g, u, s: unit(g, u, limit=1.5, row_scale=s),
        lambda g, u, s: unit.plain(g, u, limit=1.5, row_scale=s),
        ((2, 3, 4), (2, 3, 4), (2, 3)),
    )


def _halves(unit: Unit) -> Functions:
    return (
        lambda x, s: unit.of_both(x, offset=0.5, row_scale=s),
        lambda x, s: unit.plain(*unit.unpack(x), offset=0.5, row_scale=s),
        ((3, 4), (3,)),
    )


def _by_turns(unit: Unit) -> Functions:
    return (
        lambda x: unit.of_both(x, dim=0, interleaved=True, limit=1.5),
        lambda x: unit.plain(*unit.unpack(x, 0, True), limit=1.5),
        ((4, 3),),
    )


def _by_turns_and_scaled(unit: Unit) -> Functions:
    return (
        lambda x, s: unit.of_both(x, interleaved=True, offset=0.5, row_scale=s),
        lambda x, s: unit.plain(*unit.unpack(x, -1, True), offset=0.5, row_scale=s),
        ((3, 4), (3,)),
    )


every_form = pytest.mark.parametrize(
    "form", [_two, _scaled, _halves, _by_turns, _by_turns_and_scaled], ids=lambda form: form.__name__.strip("_")
)
one_of_each = pytest.mark.parametrize("unit", [UNITS[1], UNITS[3], UNITS[-1]])


def tensors(form: Callable[[Unit], Functions], unit: Unit, device: torch.device) -> tuple[Any, Any, list[Tensor]]:
    ours, plain, shapes = form(unit)
    make = Make(device, F64)
    return ours, plain, [make(*shape) for shape in shapes]


@one_of_each
@every_form
@every_transform
def test_transforms(
    unit: Unit, form: Callable[[Unit], Functions], transform: Callable[..., Any], device: torch.device
) -> None:
    ours, plain, x = tensors(form, unit, device)
    batch = batch_of(tuple(x))
    assert_close(transform(ours, x, batch), transform(plain, x, batch))


@one_of_each
@every_form
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_finite_differences(
    unit: Unit, form: Callable[[Unit], Functions], check: Callable[..., bool], device: torch.device
) -> None:
    ours, _, x = tensors(form, unit, device)
    assert check(ours, [t.requires_grad_() for t in x])


@one_of_each
def test_gradients_of_row_scale_by_sample(unit: Unit, device: torch.device) -> None:
    """Of a batch of scales beside one gate and up, and of one scale beside a batch of these."""
    make = Make(device, F64)
    gate, up, scale = make(6, 3, 4), make(6, 3, 4), make(6, 3)

    def loss(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda g, u, s: f(g, u, row_scale=s).sin().sum()

    for axes, args in (
        ((0, 0, 0), (gate, up, scale)),
        ((None, None, 0), (gate[0], up[0], scale)),
        ((0, 0, None), (gate, up, scale[0])),
        ((None, 1, 1), (gate[0], up.movedim(0, 1), scale.mT)),
    ):
        ours, plain = (torch.func.vmap(torch.func.grad(loss(f), (0, 1, 2)), axes)(*args) for f in (unit, unit.plain))
        assert_close(ours, plain)


@every_unit
def test_numbers_in_a_batch(unit: Unit, device: torch.device) -> None:
    """A batch of numbers has no dimension that could have both, and none of rows."""
    make = Make(device, F64)
    gate, up = make(6), make(6)
    assert_close(torch.func.vmap(unit)(gate, up), unit.plain(gate, up))
    with pytest.raises(RuntimeError, match=r"must have an even size along dim 0 without \w+, got shape \[\]$"):
        torch.func.vmap(unit.of_both)(gate)
    with pytest.raises(RuntimeError, match=r"row_scale needs halves along the last dimension, got dim 0 of \[\]$"):
        torch.func.vmap(lambda g, u, s: unit(g, u, row_scale=s))(gate, up, gate)


@one_of_each
def test_only_what_is_needed_is_computed(unit: Unit, device: torch.device) -> None:
    """A backward without row_scale's gradient does not add up rows."""
    make = Make(device, torch.float32)
    for needed in ((True, True, False), (True, False, True), (False, False, True)):
        args = [t.requires_grad_(need) for t, need in zip((make(5, 8), make(5, 8), make(5)), needed, strict=True)]
        with Recorder() as recorder:
            unit(*args[:2], row_scale=args[2]).sum().backward()
        assert recorder.ops == [unit.op, f"{unit.op}_backward"]
        assert recorder.args[1][-1] is needed[2]
        assert [t.grad is not None for t in args] == list(needed)
    x, y = make(5, 8), make(5, 8)
    inputs = (make(5, 8), x, y, -1, False, None, 0.0, make(5), *unit.raw)
    raw = getattr(torch.ops.fastops, f"{unit.op}_backward")
    assert [t.numel() for t in raw(*inputs, False)] == [40, 40, 0]
    assert [t.numel() for t in raw(*inputs, True)] == [40, 40, 5]


@every_unit
def test_inputs_alone_are_kept(unit: Unit, device: torch.device) -> None:
    make = Make(device, torch.bfloat16)
    gate, up, both = (make(*shape).requires_grad_() for shape in ((5, 8), (5, 8), (5, 16)))
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        kept = [unit(gate, up), unit.of_both(both, limit=7.0)]
    ordered = (up, gate, both) if unit.up_first else (gate, up, both)
    assert len(kept) == 2
    assert saved == [t.data_ptr() for t in ordered]


def test_defaults_are_left_out_of_a_call() -> None:
    """Each argument takes a tenth of a microsecond or two."""
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    s = torch.randn(3)
    for arguments, expected in (
        ({}, ()),
        ({"dim": 1, "offset": 0}, ()),
        ({"dim": 1, "interleaved": True}, (None, -1, True)),
        ({"up": y}, (y,)),
        ({"up": y, "limit": 7.0}, (y, -1, False, 7.0)),
        ({"up": y, "alpha": 1.5}, (y, -1, False, None, 0.0, None, 1.5)),
        ({"up": y, "row_scale": s}, (y, -1, False, None, 0.0, s)),
    ):
        with Recorder() as recorder:
            fastops.swiglu(x, **arguments)  # type: ignore[arg-type]
        found = recorder.args[0][1:]
        assert len(found) == len(expected) or found[-1] == 1.0, arguments
        assert all(a is b or a == b for a, b in zip(found, expected, strict=False)), arguments


@one_of_each
@every_option
def test_compile(unit: Unit, options: dict[str, Any], device: torch.device) -> None:
    """In one graph, forward and backward, of two tensors, halves, turns and rows with a scale."""

    def f(gate: Tensor, up: Tensor, scale: Tensor) -> Tensor:
        y = unit(gate, up, **options) + unit(gate, up, row_scale=scale, **options)
        both = torch.cat((gate, up), -1)
        y = y + unit.of_both(both, **options) * unit.of_both(both, interleaved=True, **options)
        return y + unit.of_both(both, row_scale=scale, **options)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(f, fullgraph=True, backend=counter)
    for shape in ((3, 4, 6), (5, 7, 8), (2, 9, 10)):
        make = Make(device, F64)
        args = make(*shape), make(*shape), make(*shape[:-1])
        ours, expected = evaluate(compiled, args), evaluate(f, args)
        assert_close(ours.outputs + ours.gradients, expected.outputs + expected.gradients)
    assert counter.frame_count == 2


def test_inductor(device: torch.device) -> None:
    """Each operator with each option through the default backend, then with other shapes, which are then dynamic."""

    def network(f: Callable[[Unit], Callable[..., Tensor]]) -> Callable[..., Tensor]:
        def of(gate: Tensor, up: Tensor, scale: Tensor) -> Tensor:
            y = torch.zeros_like(gate)
            for unit in UNITS:
                y = y + f(unit)(gate, up, limit=1.0, offset=0.5) * f(unit)(up, gate.sin(), row_scale=scale)
            return y

        return of

    torch._dynamo.reset()
    compiled = torch.compile(network(lambda unit: unit), fullgraph=True)
    for shape in ((5, 8), (7, 12), (9, 6)):
        make = Make(device, F64)
        args = make(*shape), make(*shape), make(shape[0])
        ours, expected = evaluate(compiled, args), evaluate(network(lambda unit: unit.plain), args)
        assert_close(ours.outputs + ours.gradients, expected.outputs + expected.gradients, atol=1e-9)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict: bool) -> None:
    class Units(torch.nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            y = fastops.swiglu(x, limit=7.0, alpha=1.702) + fastops.geglu(x, interleaved=True)
            return y + fastops.reglu(x, row_scale=scale) + fastops.glu(x)

    batch = torch.export.Dim("batch", min=2, max=4096)
    program = torch.export.export(
        Units(), (torch.randn(4, 8), torch.randn(4)), dynamic_shapes=({0: batch}, {0: batch}), strict=strict
    )
    called = [str(node.target) for node in program.graph.nodes if "fastops" in str(node.target)]
    assert called == [f"fastops.{op}.default" for op in ("swiglu", "geglu", "reglu", "glu")]


@every_unit
@pytest.mark.parametrize("other", DTYPES)
@pytest.mark.parametrize("own", DTYPES)
def test_different_dtypes_are_promoted(unit: Unit, own: torch.dtype, other: torch.dtype, device: torch.device) -> None:
    gate, up = Make(device, own)(5, 33), Make(device, other)(5, 33)
    dtype = torch.result_type(gate, up)
    found = evaluate(lambda g, u: unit(g, u, limit=1.0), (gate, up))
    expected = evaluate(lambda g, u: unit(g, u, limit=1.0), (gate.to(dtype), up.to(dtype)))
    assert same_bits(found.outputs[0], expected.outputs[0])
    for x, a, b in zip((gate, up), found.gradients, expected.gradients, strict=True):
        assert same_bits(a, b.to(x.dtype))


@every_unit
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("own", DTYPES)
def test_autocast_leaves_dtypes(unit: Unit, own: torch.dtype, low: torch.dtype, device: torch.device) -> None:
    make = Make(device, own)
    args = make(5, 8), make(5, 8), make(5, dtype=torch.float32)
    found = []
    for enabled in (True, False):
        with torch.autocast(device.type, low, enabled=enabled):
            found.append(evaluate(lambda g, u, s: unit(g, u, row_scale=s), args))
    for a, b in zip(found[0].outputs + found[0].gradients, found[1].outputs + found[1].gradients, strict=True):
        assert same_bits(a, b)


@every_unit
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int64])
def test_dtypes_without_a_kernel(unit: Unit, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.ones(3, 4, device=device).to(dtype)
    if dtype.is_floating_point:
        with pytest.raises(RuntimeError):
            unit(x, x)
    else:
        with pytest.raises(RuntimeError, match=rf"^\[{unit.op}\] \w+ must be floating point, got {dtype}$"):
            unit.of_both(x)


def r(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


MISTAKES: list[tuple[Callable[[Callable[[Tensor], Tensor]], Any], str]] = [
    (
        lambda t: fastops.swiglu(t(r(3, 5))),
        "[swiglu] gate must have an even size along dim 1 without up, got shape [3, 5]",
    ),
    (
        lambda t: fastops.geglu(t(r(3, 4)), dim=-2, interleaved=True),
        "[geglu] gate must have an even size along dim 0 without up, got shape [3, 4]",
    ),
    (lambda t: fastops.reglu(t(r())), "[reglu] gate must have an even size along dim 0 without up, got shape []"),
    (
        lambda t: fastops.glu(t(r(3, 4)), 0),
        "[glu] input must have an even size along dim 0 without gate, got shape [3, 4]",
    ),
    (lambda t: fastops.swiglu(t(r(3, 4)), t(r(3, 5))), "[swiglu] up must have gate's shape [3, 4], got [3, 5]"),
    (lambda t: fastops.swiglu(t(r(3, 4)), t(r(4))), "[swiglu] up must have gate's shape [3, 4], got [4]"),
    (lambda t: fastops.glu(t(r(3, 4)), gate=t(r(3, 1))), "[glu] gate must have input's shape [3, 4], got [3, 1]"),
    (
        lambda t: torch.ops.fastops.reglu(t(r(3, 4)), t(r(3, 4, dtype=F64))),
        "[reglu] up must have gate's dtype torch.float32, got torch.float64",
    ),
    (
        lambda t: fastops.geglu(t(r(3, 4)), t(r(3, 4)), interleaved=True),
        "[geglu] interleaved must be False with up, got True",
    ),
    (
        lambda t: fastops.glu(t(r(3, 4)), gate=t(r(3, 4)), interleaved=True),
        "[glu] interleaved must be False with gate, got True",
    ),
    (
        lambda t: fastops.swiglu(t(r(3, 4)), row_scale=t(r(4))),
        "[swiglu] row_scale must have shape [3], got [4]",
    ),
    (
        lambda t: fastops.swiglu(t(r(2, 3, 4)), t(r(2, 3, 4)), row_scale=t(r(2, 3, 1))),
        "[swiglu] row_scale must have shape [2, 3], got [2, 3, 1]",
    ),
    (
        lambda t: fastops.swiglu(t(r(4, 4)), interleaved=True, row_scale=t(r(3))),
        "[swiglu] row_scale must have shape [4], got [3]",
    ),
    (
        lambda t: fastops.swiglu(t(r(3, 4)), row_scale=t(r(3).long())),
        "[swiglu] row_scale must be floating point, got torch.int64",
    ),
    (
        lambda t: fastops.swiglu(t(r(4, 4)), dim=0, row_scale=t(r(4))),
        "[swiglu] row_scale needs halves along the last dimension, got dim 0 of [4, 4]",
    ),
    (
        lambda t: fastops.glu(t(r(4, 4)), 0, interleaved=True, row_scale=t(r(4))),
        "[glu] row_scale needs halves along the last dimension, got dim 0 of [4, 4]",
    ),
    (
        lambda t: fastops.swiglu(t(r()), t(r()), row_scale=t(r())),
        "[swiglu] row_scale needs halves along the last dimension, got dim 0 of []",
    ),
    (lambda t: fastops.reglu(t(r(4).long())), "[reglu] gate must be floating point, got torch.int64"),
    (lambda t: fastops.swiglu(t(r(4)), limit=-1), "[swiglu] limit must be at least 0 or None, got -1"),
    (lambda t: fastops.glu(t(r(4)), limit=-0.5), "[glu] limit must be at least 0 or None, got -0.5"),
    (lambda t: fastops.swiglu(t(r(4)), limit=float("nan")), "[swiglu] limit must be at least 0 or None, got nan"),
    (lambda t: fastops.swiglu(t(r(3, 4)), dim=2), "[swiglu] dim must be -2 to 1 for gate's 2 dimensions, got 2"),
    (
        lambda t: fastops.glu(t(r(3, 4)), -3, gate=t(r(3, 4))),
        "[glu] dim must be -2 to 1 for input's 2 dimensions, got -3",
    ),
    (
        lambda t: fastops.geglu(t(r(4)), approximate="erf"),
        "[geglu] approximate must be 'none' or 'tanh', got 'erf'",
    ),
]
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "kernels": lambda x: x,
    "with a gradient": lambda x: x.requires_grad_(x.is_floating_point()),
    "meta": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_message(
    call: Callable[[Callable[[Tensor], Tensor]], Any],
    message: str,
    way: Callable[[Tensor], Tensor],
    device: torch.device,
) -> None:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as error:
        call(lambda x: way(x.to(device)))
    assert str(error.value) == message
