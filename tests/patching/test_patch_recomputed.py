"""The result of a swapped gated unit: not kept for the backward, and computed again with the same bits."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted import GATED, N
from swapped import run
from torch import Tensor

import fastops
from fastops.patching import gated, recomputed

WIDTH = 96  # of no other tensor


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = torch.nn.Linear(N, WIDTH)
        self.up = torch.nn.Linear(N, WIDTH)
        self.down = torch.nn.Linear(WIDTH, N)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


Seen = Callable[[Tensor], object]


def swapped(seen: Seen | None = None) -> MLP:
    """``seen`` is called with each result of the unit."""
    torch.manual_seed(2)
    mlp = type("MLP", (MLP,), {})()  # of a class of its own, of which no swapped one is there yet

    def unit(gate: Tensor, up: Tensor) -> Tensor:
        y = fastops.swiglu(gate, up)
        if seen is not None:
            seen(y)
        return y

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setitem(gated.UNITS, "swiglu", unit)
        assert fastops.patch(mlp).swapped
    return mlp


def counted() -> tuple[MLP, list[int]]:
    runs: list[int] = []
    mlp = swapped(lambda y: runs.append(1))
    runs.clear()  # of its proof
    return mlp, runs


def runs_of_the_unit(mlp: MLP, runs: list[int], x: Tensor) -> list[int]:
    """How often it ran by the forward's end, and by the backward's."""
    runs.clear()
    y = mlp(x)
    forward = len(runs)
    y.sum().backward()
    return [forward, len(runs)]


@pytest.mark.parametrize("bias", [False, True])
def test_not_kept(bias: bool) -> None:
    results: list[Any] = []
    mlp = swapped(lambda y: results.append(weakref.ref(y.untyped_storage())))
    if not bias:
        mlp.down.bias = None
    results.clear()
    y = mlp(torch.randn(3, 5, N))
    assert [found() for found in results] == [None]
    y.sum().backward()


def test_again_once() -> None:
    (mlp, runs), x = counted(), torch.randn(3, 5, N)
    assert runs_of_the_unit(mlp, runs, x) == [1, 2]
    mlp.down.weight.requires_grad_(False)  # for which nothing is kept
    assert runs_of_the_unit(mlp, runs, x) == [1, 1]


@pytest.mark.parametrize("name", GATED)
def test_the_same_bits(name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    module = GATED[name][0]().to(device)
    fastops.patch(module)
    x = torch.randn(3, 5, N, device=device)
    found = run(module, x)
    monkeypatch.setattr(recomputed, "_hooks_are_enabled", lambda: False)
    expected = run(module, x)
    assert torch.equal(found[0], expected[0])
    for key, gradient in expected[1].items():
        assert gradient is None or torch.equal(found[1][key], gradient), key  # type: ignore[arg-type]


def test_autocast_and_twice() -> None:
    mlp, x = swapped(), torch.randn(4, N)
    plain = copy.deepcopy(mlp)
    plain.__class__ = MLP

    def gradients(module: MLP, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            half = module(x)
        first = torch.autograd.grad(half.float().sum(), list(module.parameters()))
        (of_x,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        return [*first, *torch.autograd.grad(of_x.square().sum(), list(module.parameters()), allow_unused=True)]

    for found, expected in zip(gradients(mlp, x), gradients(plain, x), strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))


@pytest.mark.parametrize("what", ["up", "weight"])
def test_what_was_changed_is_an_error(what: str) -> None:
    mlp, x = swapped(), torch.randn(4, N, requires_grad=True)
    outputs: dict[str, Tensor] = {}
    mlp.up.register_forward_hook(lambda module, args, output: outputs.__setitem__("up", output))
    y = mlp(x)
    with torch.no_grad():
        (outputs["up"] if what == "up" else mlp.down.weight).add_(1)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|was changed in place"):
        y.sum().backward()


def _with_hooks(call: Callable[[], Any]) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        return call()


def _with_none(call: Callable[[], Any]) -> Any:
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        return call()


@pytest.mark.parametrize("way", [_with_hooks, _with_none], ids=["hooks", "no hooks allowed"])
def test_others_have_a_say(way: Callable[[Callable[[], Any]], Any]) -> None:
    """Of hooks, such as a checkpoint's, which see the unit's result itself."""
    (mlp, runs), x = counted(), torch.randn(4, N)
    assert way(lambda: runs_of_the_unit(mlp, runs, x)) == [1, 1]


class _Product(torch.autograd.Function):
    """A linear layer that keeps its weight itself, as of engines that shard parameters."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


class _Gathered(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight)  # type: ignore[no-any-return]


def test_a_weight_that_goes_and_comes() -> None:
    """As of ZeRO's third stage, which frees what it gathered after the forward: nothing of ours holds it."""
    mlp, x = swapped(), torch.randn(4, N)
    down = _Gathered(WIDTH, N, bias=False)
    mlp.down = down
    full = down.weight.detach().clone()
    expected = torch.autograd.grad(mlp(x).sum(), down.weight)[0]
    y = mlp(x)
    gathered = weakref.ref(down.weight.data.untyped_storage())
    down.weight.data = torch.empty(0)
    assert gathered() is None
    down.weight.data = full
    y.sum().backward()
    assert down.weight.grad is not None
    assert torch.equal(down.weight.grad, expected)


def test_functional() -> None:
    mlp, x = swapped(), torch.randn(4, N)
    parameters = {name: p.detach() for name, p in mlp.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(mlp, parameters, (x,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    mlp(x).square().sum().backward()
    for name, p in mlp.named_parameters():
        torch.testing.assert_close(found[name], p.grad)
