"""The report's counts: calls of swapped modules that fastops computed, and those that went back to the original."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import pickle
from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor, nn

import fastops
from fastops.patching import Report, calls

B, HEADS, S, D, CLASSES = 2, 3, 5, 16, 11


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return turned(q), turned(k)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(q, k, cos, sin)


class Block(nn.Module):
    """An attention that calls another one between its own two rotations."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Attention()

    def forward(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return rotate(*self.inner(*rotate(q, k, cos, sin), cos, sin), cos, sin)


class Language(nn.Module):
    """A causal language model of one attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(CLASSES, D), Attention()
        self.head = nn.Linear(D, CLASSES, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        x = self.embedding(input_ids).unsqueeze(1)
        tables = torch.linspace(0, 1, x.shape[-2] * D).view(1, -1, D)
        logits = self.head(self.attention(x, x, tables.cos(), tables.sin())[0].squeeze(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def problem(**options: Any) -> list[Tensor]:
    q, k = torch.randn(B, HEADS, S, D, **options), torch.randn(B, HEADS, S, D, **options)
    return [q, k, torch.randn(B, S, D, **options), torch.randn(B, S, D, **options)]


def counts(report: Report) -> dict[str, tuple[int, int]]:
    return {name: (each.made, each.ran) for name, each in report.calls.items()}


@pytest.fixture(autouse=True)
def dynamo() -> None:
    torch._dynamo.reset()


def test_report(caplog: pytest.LogCaptureFixture) -> None:
    """Calls of a line's modules are summed, and a line without calls is as it was."""
    model = nn.ModuleList([Attention(), Attention(), Block(), nn.LayerNorm(D)])
    with caplog.at_level(logging.INFO, "fastops"):
        report = fastops.patch(model)
    before = str(report)
    assert " calls " not in before
    assert [record.getMessage() for record in caplog.records] == [before]
    given = problem()
    tables = [x[:, :1] for x in given[2:]]  # of one token for all, which goes to the function
    for _ in range(4):
        model[0](*given)
        model[1](*given[:2], *tables)
    model[3](given[0])
    assert counts(report) == {"0": (4, 4), "1": (4, 0), "2": (0, 0), "2.inner": (0, 0)}
    line = "     3 Attention as rotate as rope  [*, *.inner]"
    assert line in before.splitlines()
    assert f"{line}: of 8 calls 4 ran fastops" in str(report).splitlines()
    assert str(report).replace(": of 8 calls 4 ran fastops", "") == before
    report.undo()
    model[0](*given)
    assert counts(report)["0"] == (4, 4)


def test_a_module_within_another() -> None:
    """Each counts its own calls, also after an error of the inner one."""
    block, given = Block(), problem()
    report = fastops.patch(block)
    block(*given)
    assert counts(report) == {"": (2, 2), "inner": (1, 1)}
    with pytest.raises(RuntimeError):
        block.inner(given[0], given[1][..., :3], *given[2:])
    block(*given)
    assert counts(report) == {"": (4, 4), "inner": (3, 2)}


def test_reports_of_one_class() -> None:
    """Two models of one class share the swapped class, and not their counts."""
    first, second = Attention(), Attention()
    reports = fastops.patch(first), fastops.patch(second)
    first(*problem())
    assert [counts(report) for report in reports] == [{"": (1, 1)}, {"": (0, 0)}]


def test_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward whose function is another since goes back as a whole, which is one call."""
    block = Block()
    report = fastops.patch(block)
    monkeypatch.setitem(globals(), "rotate", lambda q, k, cos, sin: (q, k))
    block(*problem())
    assert counts(report) == {"": (1, 0), "inner": (1, 0)}


def test_dry_run() -> None:
    assert fastops.patch(Attention(), dry_run=True).calls == {}


def test_copies_and_pickles() -> None:
    """Copies and pickles have no count, and nothing of one is in the module."""
    module, given = Attention(), problem()
    before = list(module.__dict__)
    report = fastops.patch(module)
    module(*given)
    for copied in (copy.deepcopy(module), copy.copy(module), module._replicate_for_data_parallel()):
        assert type(copied) is type(module)
        copied(*given)
    assert counts(report) == {"": (1, 1)}
    assert list(module.__dict__) == before
    assert list(pickle.loads(pickle.dumps(module)).__dict__) == before


def test_a_freed_module_has_no_count() -> None:
    module = Attention()
    report = fastops.patch(module)
    key = id(module)
    assert calls._counts[key] is report.calls[""]
    report.undo()
    del module
    gc.collect()
    assert key not in calls._counts


def test_patch_again() -> None:
    """A later patch counts from 0, in its own report."""
    module, given = Attention(), problem()
    first = fastops.patch(module)
    module(*given)
    first.undo()
    second = fastops.patch(module)
    module(*given)
    module(*given)
    assert counts(first) == {"": (1, 1)}
    assert counts(second) == {"": (2, 2)}


def test_compile() -> None:
    """Under torch.compile nothing is counted, and counts of other calls make nothing compile again."""
    block, given = Block(), problem()
    report = fastops.patch(block)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(block, fullgraph=True, backend=counter)
    for _ in range(3):
        compiled(*given)
        block(*given)
    assert counter.frame_count == 1
    assert counts(report) == {"": (6, 6), "inner": (3, 3)}


def test_compile_of_the_replacement() -> None:
    """Wherever Dynamo traces the function that replaces the rotation, it is the rotation: no guard is on a count."""
    module, given = Attention(), problem()
    report = fastops.patch(module)
    replaced = inspect.getclosurevars(type(module).forward).nonlocals["eager"].__globals__["rotate"]
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(replaced, fullgraph=True, backend=counter)
    for _ in range(3):
        compiled(*given)
        module(*given)
    assert counter.frame_count == 1
    assert counts(report) == {"": (3, 3)}


def test_head() -> None:
    """A call of the head ran fastops once its loss did; logits that were read, or came at once, went back."""
    model = Language()
    ids = torch.randint(CLASSES, (B, S))
    report = fastops.patch(model, only=["rope", "loss"], loss=True)
    assert counts(report) == {"attention": (0, 0), "head": (0, 0)}  # the proof's own steps are in none
    model(input_ids=ids, labels=ids)["loss"].backward()
    assert counts(report) == {"attention": (1, 1), "head": (1, 1)}
    model(input_ids=ids)["logits"].sum().item()
    with torch.no_grad():
        model(input_ids=ids)
    assert counts(report)["head"] == (3, 1)
    logits = model(input_ids=ids)["logits"].flatten(0, 1)
    for _ in range(2):
        F.cross_entropy(logits, ids.flatten())
    assert counts(report)["head"] == (4, 2)
    assert "the head of linear_cross_entropy  [head]: of 4 calls 2 ran fastops" in str(report)


def test_a_later_proof_is_not_counted() -> None:
    model = Language()
    first = fastops.patch(model, only=["rope"])
    second = fastops.patch(model, only=["loss"], loss=True)
    assert counts(first) == {"attention": (0, 0)}
    assert counts(second) == {"head": (0, 0)}


def test_head_compiled() -> None:
    model = Language()
    ids = torch.randint(CLASSES, (B, S))
    report = fastops.patch(model, only=["loss"], loss=True)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for _ in range(3):
        compiled(input_ids=ids, labels=ids)
        model(input_ids=ids, labels=ids)
    assert counter.frame_count == 1
    assert counts(report) == {"head": (3, 3)}
