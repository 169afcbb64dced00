"""patch's arguments, its report, its messages, and the way back."""

from __future__ import annotations

import logging

import pytest
import torch
from planted import HandMLP, HandRMSNorm, N
from torch import nn

import fastops
from fastops.patching.finders import FINDERS
from fastops.patching.swap import Site


class GatedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(N))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x * gate, (N,), self.weight)


class Experts(nn.Module):
    """Parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.up_and_down = nn.Parameter(torch.ones(2, N, N))


class Mix(nn.Module):
    """A module of layers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(N, N)])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = HandRMSNorm()
        self.mlp = HandMLP(nn.ReLU())
        self.act = nn.ReLU()
        self.gated = GatedNorm()
        self.experts = Experts()
        self.mix = Mix()
        self.batch_norm = nn.BatchNorm1d(N)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x + self.mlp(self.norm(x)))


def model() -> nn.Module:
    return nn.Sequential(Block(), Block(), nn.LayerNorm(N))


def classes(of: nn.Module) -> dict[str, type]:
    return {name: type(module) for name, module in of.named_modules()}


def attributes(of: nn.Module) -> dict[str, list[str]]:
    return {name: list(module.__dict__) for name, module in of.named_modules()}


def test_report() -> None:
    report = fastops.patch(model())
    assert report.swapped == {
        "0.norm": "HandRMSNorm as rms_norm(eps=epsilon)",
        "0.mlp": "HandMLP as reglu(a, b) into c",
        "0.act": "ReLU as relu",
        "1.norm": "HandRMSNorm as rms_norm(eps=epsilon)",
        "1.mlp": "HandMLP as reglu(a, b) into c",
        "1.act": "ReLU as relu",
        "2": "LayerNorm as layer_norm(eps=eps)",
    }
    assert list(report.left) == ["0.gated", "1.gated"]
    assert report.untried == {"0.experts": "Experts", "1.experts": "Experts", "0.mix": "Mix", "1.mix": "Mix"}
    lines = str(report).splitlines()
    assert lines[0] == "fastops.patch: 7 modules swapped, 2 left"
    assert "     2 HandRMSNorm as rms_norm(eps=epsilon)  [*.norm]" in lines
    assert lines[-3] == "left as they were:"
    assert lines[-2] == "     2 GatedNorm: its forward takes more than one tensor  [*.gated]"
    assert lines[-1] == "not looked at: 2 Experts, 2 Mix"


def test_untried_modules_are_named_where_every_kind_was_asked_for() -> None:
    assert not fastops.patch(model(), only=["norms"]).untried
    assert set(fastops.patch(model(), skip=["0"]).untried) == {"1.experts", "1.mix"}
    assert not fastops.patch(nn.Sequential(nn.LayerNorm(N), nn.Linear(N, N), nn.BatchNorm1d(N))).left


@pytest.mark.parametrize("block", [False, True], ids=["patch", "patched"])
def test_an_error_undoes_all(block: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finder that raises, as a bug would, leaves no module half swapped."""
    of = model()
    before, attributes_before = classes(of), attributes(of)

    def raises(site: Site) -> None:
        if site.name == "1.norm":
            raise ZeroDivisionError

    monkeypatch.setitem(FINDERS, "gated_mlps", raises)
    with pytest.raises(ZeroDivisionError):
        fastops.patched(of).__enter__() if block else fastops.patch(of)
    assert classes(of) == before
    assert attributes(of) == attributes_before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"only": ["norms"]}, {"0.norm", "1.norm", "2"}),
        ({"only": ["activations"]}, {"0.act", "1.act", "0.mlp.act", "1.mlp.act"}),
        ({"only": ["0"]}, {"0.norm", "0.mlp", "0.act"}),
        ({"only": ["*.norm", "gated_mlps"]}, {"0.norm", "1.norm", "0.mlp", "1.mlp"}),
        ({"skip": ["gated_mlps", "activations"]}, {"0.norm", "1.norm", "2"}),
        ({"skip": ["1", "2"]}, {"0.norm", "0.mlp", "0.act"}),
        ({"only": ["norms"], "skip": ["*.norm"]}, {"2"}),
    ],
)
def test_only_and_skip(arguments: dict[str, list[str]], expected: set[str]) -> None:
    assert set(fastops.patch(model(), **arguments).swapped) == expected


def test_dry_run() -> None:
    of = model()
    before = classes(of)
    report = fastops.patch(of, dry_run=True)
    assert report.swapped == fastops.patch(model()).swapped
    assert str(report).startswith("fastops.patch: 7 modules would be swapped, 2 left")
    assert classes(of) == before
    report.undo()


def test_undo() -> None:
    of = model()
    x = torch.randn(3, N)
    before, had, expected = classes(of), attributes(of), of(x)
    report = fastops.patch(of)
    assert classes(of) != before
    report.undo()
    assert classes(of) == before
    assert attributes(of) == had
    assert torch.equal(of(x), expected)
    report.undo()
    assert fastops.patch(of).swapped == report.swapped


def test_undo_under_a_later_class() -> None:
    of = model()
    report = fastops.patch(of)
    norm = of[0].norm
    ours = type(norm)
    norm.__class__ = type("Wrapped", (ours,), {})
    swapped = classes(of)
    with pytest.raises(RuntimeError, match=r"\[undo\] 0.norm must be of the class that patch gave it, got .*Wrapped"):
        report.undo()
    assert classes(of) == swapped
    norm.__class__ = ours
    report.undo()
    assert type(norm) is HandRMSNorm


def test_patched_is_undone_after_an_error() -> None:
    of = model()
    before = classes(of)
    seen = []

    def fails() -> None:
        with fastops.patched(of, only=["norms"]) as report:
            seen.append(len(report.swapped))
            raise KeyError("within")

    with pytest.raises(KeyError, match="within"):
        fails()
    assert seen == [3]
    assert classes(of) == before


def test_patch_twice() -> None:
    of = model()
    first = fastops.patch(of)
    swapped = classes(of)
    with pytest.warns(UserWarning, match="it was swapped before"):
        second = fastops.patch(of)
    assert not second.swapped
    assert classes(of) == swapped
    second.undo()
    first.undo()


def test_shared_module_is_swapped_once() -> None:
    norm = HandRMSNorm()
    of = nn.ModuleList([norm, norm])
    report = fastops.patch(of)
    assert list(report.swapped) == ["0"]
    report.undo()
    assert type(norm) is HandRMSNorm


def test_class_stays_what_it_was() -> None:
    norm, other = HandRMSNorm(), HandRMSNorm()
    fastops.patch(norm)
    assert isinstance(norm, HandRMSNorm)
    assert type(norm).__name__ == type(norm).__qualname__ == "HandRMSNorm"
    assert type(other) is HandRMSNorm
    assert repr(norm) == "HandRMSNorm(fastops rms_norm(eps=epsilon))"
    fastops.patch(other)
    assert type(norm) is type(other)
    layer = nn.LayerNorm(N)
    fastops.patch(layer)
    assert repr(layer).endswith(", fastops layer_norm(eps=eps))")


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "fastops"):
        report = fastops.patch(model())
    assert [record.getMessage() for record in caplog.records] == [str(report)]


def test_nothing_swapped_warns() -> None:
    with pytest.warns(UserWarning, match="nothing was swapped: no module looks like"):
        fastops.patch(nn.Linear(2, 2))
    with pytest.warns(UserWarning, match=r"nothing was swapped: GatedNorm: .* \(2\)"):
        fastops.patch(nn.Sequential(GatedNorm(), GatedNorm()))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm, nn.InstanceNorm2d])
def test_statistics_of_a_batch_or_a_channel_are_not_reported(norm: type[nn.Module]) -> None:
    report = fastops.patch(nn.Sequential(norm(N), nn.LayerNorm(N)), loss=True)
    assert list(report.swapped) == ["1"]
    assert not report.left


def test_fastops_own_modules_are_no_candidates() -> None:
    of = nn.Sequential(fastops.nn.LayerNorm(N), fastops.nn.GatedMLP(N, N), fastops.nn.ReLU(), nn.LayerNorm(N))
    report = fastops.patch(of)
    assert list(report.swapped) == ["3"]
    assert not report.left


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 3}, TypeError, "model must be a torch.nn.Module, got int"),
        ({"verify": "all"}, ValueError, "verify must be 'close' or 'bits', got 'all'"),
        ({"only": "norms"}, TypeError, "only must be a sequence of str, got 'norms'"),
        ({"skip": [3]}, TypeError, r"skip must be a sequence of str, got \[3\]"),
        ({"only": ["nroms"]}, ValueError, r"only must have kinds \(.*norms.*\) or names of modules, got 'nroms'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"\[patch\] {message}"):
        fastops.patch(**{"model": nn.LayerNorm(N), **arguments})  # type: ignore[arg-type]
