"""Gated MLPs and activations that are swapped, against the module's own; impostors, of which none is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from planted import GATED, IMPOSTOR_MLPS, HandMLP, N
from swapped import against_itself
from torch import nn

import fastops

ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "relu": (nn.ReLU, "ReLU as relu"),
    "sigmoid": (nn.Sigmoid, "Sigmoid as sigmoid"),
    "softmax": (lambda: nn.Softmax(-1), "Softmax as softmax(dim=dim)"),
    "softmax of dimension 1": (lambda: nn.Softmax(1), "Softmax as softmax(dim=dim)"),
    "log_softmax": (lambda: nn.LogSoftmax(-1), "LogSoftmax as log_softmax(dim=dim)"),
    "glu": (nn.GLU, "GLU as glu(dim=dim)"),
    "subclass": (lambda: type("MyReLU", (nn.ReLU,), {})(), "MyReLU as relu"),
}


def _of_a_number(name: str, forward: Callable[..., torch.Tensor], value: float) -> nn.Module:
    module = type("Sigmoid", (nn.Sigmoid,), {"forward": forward})()
    setattr(module, name, value)
    return module


LEFT_ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "in place": (lambda: nn.ReLU(inplace=True), "ReLU: it overwrites its input, which fastops never does"),
    "without dim": (nn.Softmax, "Softmax: its dim is None"),
    "another": (
        lambda: type("ReLU", (nn.ReLU,), {"forward": lambda self, x: x.clamp(0, 60)})(),
        "ReLU: it is not relu: float64: 0.",
    ),
    **{
        f"of a number: {name}": (
            lambda name=name: _of_a_number(name, lambda self, x: torch.sigmoid(x) * getattr(self, name), 1),  # type: ignore[misc]
            f"Sigmoid: its result depends on its attribute {name}",
        )
        for name in ("by", "dim")
    },
    "within a bound": (
        lambda: _of_a_number("limit", lambda self, x: torch.sigmoid(x).clamp(max=self.limit), 1000.0),
        "Sigmoid: its result depends on its attribute limit",
    ),
}


@pytest.mark.parametrize("name", GATED)
def test_gated(name: str, device: torch.device) -> None:
    make, expected = GATED[name]
    module = make().to(device)
    report = fastops.patch(module)
    assert report.swapped == {"": expected}
    assert not report.left
    against_itself(module, report, torch.randn(3, 5, N, device=device), 2e-6)


@pytest.mark.parametrize("name", IMPOSTOR_MLPS)
def test_impostor_mlps(name: str) -> None:
    module = IMPOSTOR_MLPS[name]()
    before = type(module)
    report = fastops.patch(nn.ModuleList([module, nn.LayerNorm(N)]))
    assert list(report.swapped) == ["1"]
    assert list(report.left) == ["0"]
    assert type(module) is before


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, device: torch.device) -> None:
    make, expected = ACTIVATIONS[name]
    module = make().to(device)
    report = fastops.patch(module)
    assert report.swapped == {"": expected}
    against_itself(module, report, torch.randn(3, 4, N, device=device), 2e-6)


@pytest.mark.parametrize("name", LEFT_ACTIVATIONS)
def test_left_activations(name: str) -> None:
    make, reason = LEFT_ACTIVATIONS[name]
    with pytest.warns(UserWarning, match="nothing was swapped"):
        report = fastops.patch(make())
    assert report.left[""].startswith(reason)


def test_projections_are_called_as_modules() -> None:
    """What hangs on them stays in force: a hook that scales, forward and backward."""
    module = HandMLP()
    report = fastops.patch(module)
    calls = []
    for projection in (module.a, module.b, module.c):
        projection.register_forward_pre_hook(lambda module, args: calls.append(module))
        projection.register_forward_hook(lambda module, args, output: 1.5 * output)
    against_itself(module, report, torch.randn(3, N), 2e-6)
    assert calls[:3] == [module.a, module.b, module.c]


def test_hooks_of_the_module() -> None:
    module = nn.LayerNorm(N)
    x = torch.randn(3, N)
    module.register_forward_hook(lambda module, args, output: output + 1)
    expected = module(x)
    fastops.patch(module)
    torch.testing.assert_close(module(x), expected)


def test_of_each_instance() -> None:
    """Two of one class that differ in an attribute: one is a gated unit of fastops, one is not."""

    class Block(HandMLP):
        def __init__(self, squares: bool) -> None:
            super().__init__()
            self.squares = squares

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.act(self.a(x)) * (self.b(x) ** 2 if self.squares else self.b(x)))

    report = fastops.patch(nn.ModuleList([Block(False), Block(True), Block(False)]))
    assert list(report.swapped) == ["0", "2"]
    assert report.left == {"1": "Block: it is not a gated unit between its projections"}


def test_attention_is_no_gated_mlp() -> None:
    """Three projections of one size, but more than one argument: not even listed."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(N, N) for _ in range(3))

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return torch.softmax(self.q(x) @ self.k(x).mT, -1) @ self.v(x)

    assert not fastops.patch(nn.ModuleList([Attention(), nn.LayerNorm(N)])).left
