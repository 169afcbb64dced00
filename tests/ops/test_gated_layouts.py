"""swiglu, geglu, reglu and glu: one result whatever the layout and the rows beside, and the strides of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gated_units import UNITS, Unit, assert_true, evaluated, every_dtype, every_option, every_unit
from placed import placed
from test_layouts import layouts, tensor
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import fastops
from fastops.cases import Make, channels_last, stepped
from fastops.selftest.accuracy import evaluate
from fastops.selftest.bits import same_bits

SWIGLU = UNITS[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 6, 4, 8), (4, 6, 10, 14)])
def test_glu_is_torchs_along_each_dimension(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> None:
    x = Make(device, dtype)(*shape)
    for layout in (
        Tensor.contiguous,
        channels_last,
        stepped,
        lambda t: t.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
    ):
        leaf = layout(x)
        for dim in range(-4, 4):
            ours, theirs = (evaluate(lambda x, f=f, dim=dim: f(x, dim), (leaf,)) for f in (fastops.glu, F.glu))
            for a, b in zip(ours.outputs + ours.gradients, theirs.outputs + theirs.gradients, strict=True):
                torch.testing.assert_close(a, b)
            if layout is channels_last:
                for t in (*ours.outputs, *ours.gradients):
                    assert t.is_contiguous(memory_format=torch.channels_last)


@every_unit
@every_dtype
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_halves_at_any_alignment(unit: Unit, dtype: torch.dtype, scaled: bool, device: torch.device) -> None:
    """The bits of two tensors, of halves of every width, in rows that begin anywhere."""
    make = Make(device, dtype)
    for d in range(1, 41):
        rows = 4500 // d if d % 8 in (0, 1, 5) else 3  # on CUDA more than 4096 elements, or an element a thread
        gate, up, grad = make(rows, d), make(rows, d), make(rows, d)
        options: dict[str, Any] = {"limit": 1.0}
        if scaled:
            options["row_scale"] = make(rows)
        expected = evaluate(lambda g, u, o=options: unit(g, u, **o), (gate, up), (grad,))
        of_both = unit.pack(*expected.gradients)
        both = unit.pack(gate, up)
        for x in (both, placed(both, 1, 0), placed(both, d % 8, 3), placed(both, 0, 16)):
            found = evaluate(lambda x, o=options: unit.of_both(x, **o), (x,), (placed(grad, d % 5, 1),))
            assert same_bits(found.outputs[0], expected.outputs[0]), (d, x.stride(), x.storage_offset())
            assert same_bits(found.gradients[0], of_both), (d, x.stride(), x.storage_offset())


@every_unit
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_option
@pytest.mark.parametrize("n", [64, 131])
def test_rows_do_not_see_each_other(
    unit: Unit, dtype: torch.dtype, options: dict[str, Any], n: int, device: torch.device
) -> None:
    """The bits of a row alone, where all rows are enough for another kernel on CUDA, and beside NaN; two runs equal."""
    make = Make(device, dtype)
    tensors = make(80, n), make(80, n), make(80, dtype=torch.float32)
    grad = make(80, n)

    def run(rows: slice) -> tuple[Tensor, ...]:
        cut = tuple(t[rows].contiguous() for t in tensors)
        of_rows = evaluate(lambda g, u, s: unit(g, u, row_scale=s, **options), cut, (grad[rows],))
        of_all = evaluate(lambda g, u: unit(g, u, **options), cut[:2], (grad[rows],))
        return of_rows.outputs + of_rows.gradients + of_all.outputs + of_all.gradients

    whole = run(slice(None))
    assert all(same_bits(a, b) for a, b in zip(whole, run(slice(None)), strict=True))
    for row in (0, 7, 79):
        assert all(same_bits(a[row : row + 1], b) for a, b in zip(whole, run(slice(row, row + 1)), strict=True))
    for t in tensors:
        t[40] = torch.nan
    assert all(same_bits(a[41:], b[41:]) for a, b in zip(whole, run(slice(None)), strict=True))


INCOMING: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded": lambda g: g[:1, :1].expand(g.shape),
    "one for each row": lambda g: g[:, :1].expand(g.shape),
    "transposed": lambda g: g.mT.contiguous().mT,
    "stepped": stepped,
    "misaligned": lambda g: placed(g, 1, 0),
    "sliced": lambda g: placed(g, 3, 5),
}


@every_unit
@every_dtype
@pytest.mark.parametrize("layout", INCOMING.values(), ids=INCOMING)
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
def test_incoming_gradients_of_any_layout(
    unit: Unit, dtype: torch.dtype, layout: Callable[[Tensor], Tensor], scaled: bool, device: torch.device
) -> None:
    make = Make(device, dtype)
    parts = make(35, 131), make(35, 131)
    scale = (make(35),) if scaled else ()
    grad = layout(make(35, 131))

    def options(rest: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"limit": 1.0, **({"row_scale": rest[0]} if rest else {})}

    for ours, args in (
        (lambda g, u, *s: unit(g, u, **options(s)), (*parts, *scale)),
        (lambda x, *s: unit.of_both(x, **options(s)), (unit.pack(*parts), *scale)),
    ):
        a, b = (evaluate(ours, args, (g,)).gradients for g in (grad, grad.contiguous()))
        assert all(same_bits(x, y) for x, y in zip(a, b, strict=True))


def strides(ours: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = ours(*leaves)
    return [y.stride(), *(g.stride() for g in torch.autograd.grad(y, leaves, torch.ones_like(y)))]


def assert_strides(ours: Callable[..., Tensor], inputs: tuple[Tensor, ...], expected: list[Tensor]) -> None:
    """Of the result and of each gradient, real and fake."""
    found = strides(ours, inputs)
    assert found == [t.stride() for t in expected]
    with FakeTensorMode() as mode:
        assert strides(ours, tuple(mode.from_tensor(x) for x in inputs)) == found


@pytest.mark.parametrize("unit", [SWIGLU, UNITS[-1]])
def test_strides(unit: Unit, device: torch.device) -> None:
    """Those of an elementwise op of gate and up, and of a tensor like the input; contiguous of rows with a scale."""
    for seed in range(120):
        first, _, second = layouts(seed)
        if {0, 1} & set(first[0]):  # of whose strides torch's own real and fake results are not of one mind
            continue
        gate, up = tensor(first, device), tensor(second, device)
        ordered = (up, gate) if unit.up_first else (gate, up)
        like = [torch.empty_like(x) for x in (gate, up)]
        assert_strides(lambda g, u: unit(g, u), (gate, up), [torch.add(*ordered), *like])
        if gate.dim() and gate.size(-1) % 2 == 0 and gate.size(-1) > 2:
            a, b = unit.unpack(gate)
            assert_strides(unit.of_both, (gate,), [torch.add(a, b), like[0]])
            a, b = unit.unpack(gate, -1, True)
            assert_strides(lambda x: unit.of_both(x, interleaved=True), (gate,), [torch.add(a, b), like[0]])
        if gate.dim():
            scale = gate.new_ones(gate.shape[:-1])
            dense = gate.contiguous()
            assert_strides(lambda g, u, s: unit(g, u, row_scale=s), (gate, up, scale), [dense, dense, dense, scale])


ORDER = [*range(0, 18, 2), *range(1, 18, 2)]  # of dimensions of which no two merge with contiguous ones'
PERMUTED: dict[str, tuple[bool, ...]] = {
    "one": (True,),
    "gate alone": (True, False),
    "up alone": (False, True),
    "both": (True, True),
}


@pytest.mark.parametrize("form", PERMUTED)
@pytest.mark.parametrize("scaled", [True, False])
def test_more_dimensions_than_a_kernel_has(form: str, scaled: bool, device: torch.device) -> None:
    make = Make(device, torch.float64)
    args = tuple(make(*[2] * 18).permute(ORDER if permuted else sorted(ORDER)) for permuted in PERMUTED[form])
    scale = (make(*[2] * 17),) if scaled else ()

    def options(rest: tuple[Tensor, ...]) -> dict[str, Any]:
        return {"limit": 1.0, **({"row_scale": rest[len(args)]} if scaled else {})}

    def plain(*x: Tensor) -> Tensor:
        return SWIGLU.plain(*(x[:2] if len(args) == 2 else SWIGLU.unpack(x[0])), **options(x))

    found, truth = evaluated(lambda *x: fastops.swiglu(*x[: len(args)], **options(x)), plain, (*args, *scale))
    assert_true(SWIGLU, found, truth)

    def strides(x: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
        x = tuple(t.detach().requires_grad_() for t in x)
        y = fastops.swiglu(*x[: len(args)], **options(x))
        return [t.stride() for t in (y, *torch.autograd.grad(y, x, torch.ones_like(y)))]

    with FakeTensorMode() as mode:
        fake = tuple(mode.from_tensor(x) for x in (*args, *scale))
        expected = strides(fake)
    assert strides((*args, *scale)) == expected
