"""Outputs that no input with a gradient reaches need none, as of torch's own ops; nor do integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import fastops
from fastops import kit
from fastops.cases import CASES, Case, Make, by_name

PLAIN = {name: case.plain for name, case in by_name().items()}


def rope_of(op: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
    """x as q, and w as k for each of its tokens."""
    return lambda x, w: op(x, w.expand(3, 8), *tables(x))


def qk_norm_rope_of(op: Callable[..., Any]) -> Callable[[Tensor, Tensor], Any]:
    """x as q, and w as the weight of k."""
    return lambda x, w: op(x, x.detach() + 1, None, w, *tables(x), 1e-6)


def tables(x: Tensor) -> tuple[Tensor, Tensor]:
    angles = torch.arange(24.0, device=x.device).view(3, 8)
    return angles.cos(), angles.sin()


PAIRS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor], Any]]] = {
    "add_rms_norm": (
        lambda x, w: fastops.add_rms_norm(x, 2 * x.detach(), (8,), w),
        lambda x, w: (torch.nn.functional.rms_norm(x + 2 * x.detach(), (8,), w), x + 2 * x.detach()),
    ),
    "add_layer_norm": (
        lambda x, w: fastops.add_layer_norm(x.detach(), x, (8,), None, w),
        lambda x, w: (torch.nn.functional.layer_norm(x.detach() + x, (8,), None, w), x.detach() + x),
    ),
    "rope": (rope_of(fastops.rope), rope_of(PLAIN["rope"])),
    "qk_norm_rope": (qk_norm_rope_of(fastops.qk_norm_rope), qk_norm_rope_of(PLAIN["qk_norm_rope"])),
    "elementwise": (kit.elementwise("f(x, w)", "x * w, 2 * x"), lambda x, w: (x * w, 2 * x)),
    "elementwise with backward": (
        kit.elementwise("g(x, w)", "x * w, 2 * x", backward="grad0 * w + 2 * grad1, grad0 * x"),
        lambda x, w: (x * w, 2 * x),
    ),
    "op": (
        kit.op("reach::a(Tensor x, Tensor w) -> (Tensor y, Tensor s)", reference=lambda x, w: (x * w, 2 * x)),
        lambda x, w: (x * w, 2 * x),
    ),
    "op with backward": (
        kit.op(
            "reach::b(Tensor x, Tensor w) -> (Tensor y, Tensor s)",
            reference=lambda x, w: (x * w, 2 * x),
            backward=lambda grad_y, grad_s, x, w: (grad_y * w + 2 * grad_s, grad_y * x),
        ),
        lambda x, w: (x * w, 2 * x),
    ),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("learns", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize("name", PAIRS)
def test_as_torchs_composition(name: str, learns: tuple[bool, bool], compiled: bool, device: torch.device) -> None:
    ours, torchs = PAIRS[name]
    if compiled:
        torch._dynamo.reset()  # all of them share its limit of compilations
        ours = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x, w = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    inputs = [t.requires_grad_(need) for t, need in zip((x, w), learns, strict=True)]
    found, expected = ours(*inputs), torchs(*inputs)
    assert [y.requires_grad for y in found] == [y.requires_grad for y in expected]
    learning = [t for t in inputs if t.requires_grad]
    for k, y in enumerate(found):
        if y.requires_grad:
            ours_g, torchs_g = (
                torch.autograd.grad(of[k].sum(), learning, retain_graph=True, allow_unused=True)
                for of in (found, expected)
            )
            for t, a, b in zip(learning, ours_g, torchs_g, strict=True):
                zero = torch.zeros_like(t)
                torch.testing.assert_close(zero if a is None else a, zero if b is None else b)


def several_outputs() -> Iterator[Any]:
    for case in CASES:
        for k, call in enumerate(case.calls(Make("cpu", torch.float32))):
            if isinstance(case.function(**call.arguments), tuple):
                yield pytest.param(case, k, id=f"{case.name}-{k}")


@pytest.mark.parametrize(("case", "number"), [*several_outputs()])
def test_every_operator_with_several_outputs(case: Case, number: int) -> None:
    """Each tensor alone requires a gradient."""
    call = list(case.calls(Make("cpu", torch.float32)))[number]
    names = [name for name, x in call.arguments.items() if isinstance(x, Tensor) and x.is_floating_point()]
    for learns in sorted({*names} - {*case.fixed}):
        given = {name: x.clone().requires_grad_(name == learns) for name, x in call.arguments.items() if name in names}
        found, expected = (
            [y is not None and y.requires_grad for y in function(**(call.arguments | given | plain))]
            for function, plain in ((case.function, {}), (case.plain, call.plain))
        )
        assert found == expected, learns


def test_a_straight_through_estimator_keeps_its_gradient() -> None:
    """That its reference has none does not count where backward= is given."""
    step = kit.op(
        "reach::step(Tensor x) -> (Tensor y, Tensor z)",
        reference=lambda x: ((x > 0).to(x.dtype), 2 * x),
        backward=lambda grad_y, grad_z: grad_y + 2 * grad_z,
    )
    for f in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        x = torch.randn(4, requires_grad=True)
        assert torch.equal(torch.autograd.grad(f(x)[0].sum(), x)[0], torch.ones(4))


def test_integer_outputs() -> None:
    largest = kit.op("reach::largest(Tensor x) -> (Tensor v, Tensor i)", reference=lambda x: tuple(x.max(-1)))
    mask = kit.op("reach::mask(Tensor x) -> Tensor", reference=lambda x: x > 0)
    x = torch.randn(4, 5, requires_grad=True)
    expected = torch.autograd.grad(x.max(-1).values.sum(), x)
    for compiled in (False, True):
        ours, masked = (torch.compile(f, fullgraph=True) if compiled else f for f in (largest, mask))
        values, places = ours(x)
        assert values.requires_grad
        assert not places.requires_grad
        assert torch.equal(places, x.argmax(-1))
        assert torch.equal(torch.autograd.grad(values.sum(), x)[0], expected[0])
        assert not masked(x).requires_grad
    of_sum = torch.func.grad(lambda x: largest(x)[0].sum())
    assert torch.equal(of_sum(x.detach()), expected[0])
    batch = torch.randn(3, 4, 5)
    assert torch.equal(torch.func.vmap(largest)(batch)[1], batch.argmax(-1))
    assert torch.equal(torch.func.vmap(of_sum)(batch), torch.stack([of_sum(b) for b in batch]))
    tangent = torch.randn(4, 5)
    _, moved = torch.func.jvp(lambda x: largest(x)[0], (x.detach(),), (tangent,))
    assert torch.equal(moved, tangent.gather(-1, x.argmax(-1, keepdim=True))[..., 0])
