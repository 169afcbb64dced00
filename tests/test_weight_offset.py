"""What is added to a norm's weight: in the type that is computed in, by every transform, left out where it is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from added import N
from recorder import Recorder
from table import assert_close
from torch import Tensor
from transforms import every_transform

import fastops
from fastops.cases import DTYPES, Make
from fastops.cases import norms as formulas
from fastops.selftest.accuracy import ulps
from fastops.selftest.bits import same_bits

every_dtype = pytest.mark.parametrize("dtype", DTYPES)
every_norm = pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
AFFINE = {"rms_norm": [(None,), ("own",), ("f32",)]}  # what weight and, of a layer norm, bias are
AFFINE["layer_norm"] = [(w, b) for (w,) in AFFINE["rms_norm"] for b in (None, "own", "f32")]


@pytest.mark.parametrize(("norm", "affine"), [(norm, affine) for norm, kinds in AFFINE.items() for affine in kinds])
@every_dtype
@pytest.mark.parametrize("function", ["kernels", "reference"])
@pytest.mark.parametrize("n", [N, 5, 9001])
def test_weight_offset(
    norm: str, affine: tuple[str | None, ...], dtype: torch.dtype, device: torch.device, function: str, n: int
) -> None:
    """Added in the type that is computed in: a weight that 1 would swallow in the half types still counts."""
    module: Any = fastops if function == "kernels" else fastops.reference
    make = Make(device, dtype)
    dtypes = {"own": dtype, "f32": make.parameter_dtype}
    given = [
        k and make(n, scale=s, dtype=dtypes[k]).requires_grad_() for k, s in zip(affine, (1e-3, 1.0), strict=False)
    ]
    x = make(9, n).requires_grad_()
    y = getattr(module, norm)(x, (n,), *given, 1e-6, weight_offset=1.0)
    grad = make(9, n)
    leaves = [x, *(t for t in given if t is not None)]
    found = y, *torch.autograd.grad(y, leaves, grad)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in (x, *given)]
    truth = getattr(formulas, norm)(wide[0], (n,), *wide[1:], 1e-6, weight_offset=1.0)
    expected = truth, *torch.autograd.grad(truth, [t for t in wide if t is not None], grad.double())
    for a, b in zip(found, expected, strict=True):
        assert ulps(a, b.detach().cpu()) < (0.52 if dtype in (torch.float16, torch.bfloat16) and a is y else 12)
    added, total = getattr(module, f"add_{norm}")(x, torch.zeros_like(x), (n,), *given, 1e-6, weight_offset=1.0)
    assert same_bits(added, y)
    assert same_bits(total, x)


@every_norm
def test_weight_offset_without_a_weight(norm: str, device: torch.device) -> None:
    x = Make(device, torch.float32)(9, N)
    function = getattr(fastops, norm)
    assert same_bits(function(x, (N,), weight_offset=1.0), function(x, (N,)))


@every_norm
def test_no_offset_is_left_out_of_the_call(norm: str) -> None:
    """An argument costs time on its way through torch."""
    x, w = torch.randn(3, 5), torch.randn(5)
    with Recorder() as recorder:
        getattr(fastops, norm)(x, (5,), w, weight_offset=0.0)
    assert all(isinstance(argument, Tensor) or argument is None for argument in recorder.args[0])


@every_norm
def test_weight_offset_is_a_keyword(norm: str) -> None:
    x, w = torch.randn(3, 5), torch.randn(5)
    affine = [w] if norm == "rms_norm" else [w, w]
    with pytest.raises(TypeError, match="positional argument"):
        getattr(fastops, norm)(x, (5,), *affine, 1e-5, 1.0)


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "rms_norm": [(3, 4), (4,)],
    "add_rms_norm": [(3, 4), (3, 4), (4,)],
    "layer_norm": [(3, 4), (4,), (4,)],
    "add_layer_norm": [(3, 4), (3, 4), (4,), (4,)],
}
OFFSET = [(getattr(fastops, name), getattr(formulas, name), shapes) for name, shapes in SHAPES.items()]
every_offset = pytest.mark.parametrize(("function", "formula", "shapes"), OFFSET, ids=SHAPES)
Shapes = list[tuple[int, ...]]


def with_offset(function: Callable[..., Any], shapes: Shapes) -> Callable[..., Any]:
    lead = shapes.count((3, 4))
    return lambda *t: function(*t[:lead], (4,), *t[lead:], 0.5, weight_offset=0.75)


@every_offset
@every_transform
def test_transforms_with_an_offset(
    function: Any, formula: Any, shapes: Shapes, transform: Callable[..., Any], device: torch.device
) -> None:
    make = Make(device, torch.float64)
    x, batch = [make(*s) for s in shapes], [make(6, *s) for s in shapes]
    ours, plain = (transform(with_offset(f, shapes), x, batch) for f in (function, formula))
    assert_close(ours, plain)


@every_offset
def test_compile_with_an_offset(function: Any, formula: Any, shapes: Shapes, device: torch.device) -> None:
    make = Make(device, torch.float64)
    x = [make(*s).requires_grad_() for s in shapes]
    torch._dynamo.reset()
    compiled = torch.compile(with_offset(function, shapes), fullgraph=True, backend="aot_eager")
    results = []
    for f in (compiled, with_offset(formula, shapes)):
        out = f(*x)
        loss = sum(o.sin().sum() for o in (out if isinstance(out, tuple) else (out,)))
        results.append((out, torch.autograd.grad(loss, x)))
    assert_close(*results)


@every_offset
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_finite_differences_with_an_offset(
    function: Any, formula: Any, shapes: Shapes, check: Callable[..., bool], device: torch.device
) -> None:
    make = Make(device, torch.float64)
    assert check(with_offset(function, shapes), [make(*s).requires_grad_() for s in shapes])
