"""patch's arguments, its report, its messages, and the way back."""

from __future__ import annotations

import logging

import pytest
import torch
from planted import HandMLP, HandRMSNorm, N
from torch import nn

import fastops


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = HandRMSNorm()
        self.mlp = HandMLP(nn.ReLU())
        self.act = nn.ReLU()
        self.frozen = nn.BatchNorm1d(N)

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
    assert list(report.left) == ["0.frozen", "1.frozen"]
    lines = str(report).splitlines()
    assert lines[0] == "fastops.patch: 7 modules swapped, 2 left"
    assert "     2 HandRMSNorm as rms_norm(eps=epsilon)  [*.norm]" in lines
    assert lines[-2] == "left as they were:"
    assert lines[-1].startswith("     2 BatchNorm1d: ")


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
    with pytest.warns(UserWarning, match=r"nothing was swapped: BatchNorm1d: .* \(2\)"):
        fastops.patch(nn.Sequential(nn.BatchNorm1d(N), nn.BatchNorm1d(N)))


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
