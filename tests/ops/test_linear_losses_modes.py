"""linear_cross_entropy and linear_log_prob: what is kept, what is asked for, and torch's modes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from linear_losses import (
    CLASSES,
    ROWS,
    WIDTH,
    every_dtype,
    every_save,
    leaves,
    made,
    outputs_of,
    pair,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from fastops._operator import OPERATORS
from fastops.cases import Make
from fastops.cases.inputs import HALVES
from fastops.families import linear_sums

pytest_plugins = ["linear_fixtures"]
pytestmark = pytest.mark.usefixtures("narrow")


@every_save
@pytest.mark.parametrize("needs", [n for n in itertools.product((False, True), repeat=3) if any(n)], ids=str)
def test_only_what_is_asked_for(
    op: str, save: str, needs: tuple[bool, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen head has no gradient, and the backward no product for it."""
    x, w, target, b = made(torch.float32, device)
    every = leaves(x, w, b)
    whole = torch.autograd.grad(sum(o.sum() for o in outputs_of(op, *pair(every, target), save=save)), every)
    products: list[Tensor] = []
    into = linear_sums.Sums._product_into

    def counted(self: Any, out: Tensor, *others: Tensor) -> None:
        products.append(out)
        into(self, out, *others)

    monkeypatch.setattr(linear_sums.Sums, "_product_into", counted)
    some = [t.detach().requires_grad_(need) for t, need in zip((x, w, b), needs, strict=True)]
    total = sum(o.sum() for o in outputs_of(op, *pair(some, target), save=save))
    total.backward()  # type: ignore[union-attr]
    for t, gradient, need in zip(some, whole, needs, strict=True):
        assert (t.grad is not None) == need
        if need:
            torch.testing.assert_close(t.grad, gradient, rtol=1e-5, atol=1e-6)
    assert bool(products) == needs[1]


@every_save
@every_dtype
def test_backward_again(op: str, save: str, dtype: torch.dtype, device: torch.device) -> None:
    """A graph that is kept gives the same again; the last backward may use the logits' memory."""
    x, w, target, b = made(dtype, device)
    ours = leaves(x, w, b)
    outputs = outputs_of(op, *pair(ours, target), save=save)
    grads = [torch.randn_like(o) for o in outputs]
    first, second = (torch.autograd.grad(outputs, ours, grads, retain_graph=True) for _ in range(2))
    last = torch.autograd.grad(outputs, ours, grads)
    for a, c, d in zip(first, second, last, strict=True):
        assert torch.equal(a, c)
        torch.testing.assert_close(a, d, rtol=2e-2 if dtype in HALVES else 1e-4, atol=1e-2 if dtype in HALVES else 1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@every_save
def test_checkpoint(op: str, save: str, reentrant: bool, device: torch.device) -> None:
    x, w, target, b = made(torch.float32, device)
    found = []
    for run in (lambda f, *t: f(*t), lambda f, *t: checkpoint(f, *t, use_reentrant=reentrant)):
        ours = leaves(x, w, b)
        outputs = run(lambda *t: outputs_of(op, *pair(list(t), target), save=save), *ours)
        sum(o.sum() for o in outputs).backward()
        found.append([t.grad for t in ours])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_a_backward_that_failed(op: str, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have overwritten the logits: the next one multiplies them again."""
    x, w, target, b = made(torch.float32, device)
    ours = leaves(x, w, b)
    outputs = outputs_of(op, *pair(ours, target), save="logits")
    grads = [torch.ones_like(o) for o in outputs]
    expected = torch.autograd.grad(outputs, ours, grads, retain_graph=True)
    with monkeypatch.context() as patch:

        def full(*arguments: Any) -> None:
            raise torch.OutOfMemoryError("no memory")

        patch.setattr(linear_sums.Sums, "_product_into", full)
        with pytest.raises(torch.OutOfMemoryError):
            torch.autograd.grad(outputs, ours, grads)
    for again in (True, False):
        found = torch.autograd.grad(outputs, ours, grads, create_graph=again, retain_graph=again)
        torch.testing.assert_close(list(found), list(expected), rtol=1e-5, atol=1e-6)


def test_two_threads(op: str) -> None:
    make = Make("cpu", torch.float32)
    x, w, target = make(256, 32), make(9000, 32, scale=0.3), make.integers(256, below=9000)
    ours = leaves(x, w)
    outputs = outputs_of(op, *pair(ours, target), save="logits")
    expected = torch.autograd.grad(outputs, ours, [torch.ones_like(o) for o in outputs], retain_graph=True)
    found: list[Any] = []

    def run() -> None:
        found.append(torch.autograd.grad(outputs, ours, [torch.ones_like(o) for o in outputs]))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found  # a thread may come after the other has freed the graph
    for gradients in found:
        torch.testing.assert_close(list(gradients), list(expected), rtol=1e-4, atol=1e-5)


def test_batched_gradients(op: str, device: torch.device) -> None:
    x, w, target, b = made(torch.float32, device)
    ours = leaves(x, w, b)
    for k in range(1 if op == "cross_entropy" else 2):
        options = {"reduction": "none"} if op == "cross_entropy" else {}
        output = outputs_of(op, *pair(ours, target), save="logits", **options)[k]
        batch = torch.rand(3, *output.shape, device=device)
        found = torch.autograd.grad(output, ours, batch, is_grads_batched=True, retain_graph=True)
        last = torch.autograd.grad(output, ours, batch, is_grads_batched=True)
        one = outputs_of(op, *pair(ours, target), save="logits", **options)[k]
        alone = torch.autograd.grad(one, ours, batch[1])
        for a, again, c in zip(found, last, alone, strict=True):
            torch.testing.assert_close(a[1], c, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(again, a, rtol=1e-4, atol=1e-5)


def test_what_hooks_keep_is_not_overwritten(op: str, device: torch.device) -> None:
    x, w, target, b = made(torch.float32, device)
    kept: list[tuple[Tensor, Tensor]] = []

    def pack(t: Tensor) -> Tensor:
        kept.append((t, t.detach().clone()))
        return t

    ours = leaves(x, w, b)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = outputs_of(op, *pair(ours, target), save="logits")
    sum(o.sum() for o in outputs).backward()  # type: ignore[union-attr]
    assert any(t.shape == (ROWS, CLASSES) for t, _ in kept)
    assert all(torch.equal(t, before) for t, before in kept)


@pytest.mark.parametrize("op", ["cross_entropy", "log_prob"])
def test_a_loss_may_be_changed_in_place(op: str, device: torch.device) -> None:
    x, w, target, b = made(torch.float64, device)
    mask, options = torch.arange(ROWS, device=device) % 2, {"reduction": "none"} if op == "cross_entropy" else {}

    def gradients(masked: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        ours = leaves(x, w, b)
        return torch.autograd.grad(masked(outputs_of(op, *pair(ours, target), **options)[0]).sum(), ours)

    for found, expected in zip(gradients(lambda y: y.mul_(mask)), gradients(lambda y: y * mask), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


@every_save
def test_inputs_are_left_as_they_were(op: str, save: str, device: torch.device) -> None:
    x, w, target, b = made(torch.bfloat16, device)
    ours = leaves(x, w, b)
    before = [t.detach().clone() for t in (*ours, target)]
    outputs = outputs_of(op, *pair(ours, target), save=save)
    grads = [torch.rand_like(o) for o in outputs]
    copies = [g.clone() for g in grads]
    torch.autograd.grad(outputs, ours, grads)
    assert all(torch.equal(a, c) for a, c in zip((*ours, target, *grads), (*before, *copies), strict=True))


@every_save
def test_compiled(op: str, save: str, device: torch.device) -> None:
    """One graph for any number of rows, without a break, forward and backward."""
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()

    def function(x: Tensor, w: Tensor, target: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return outputs_of(op, x, w, target, b, save=save, softcap=5.0)

    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    counts = []
    for rows in (ROWS, 50, 11):
        x, w, target, b = made(torch.float32, device, rows)
        results = []
        for f in (function, compiled):
            ours = leaves(x, w, b)
            outputs = f(*pair(ours, target))
            results.append((outputs, torch.autograd.grad(outputs, ours, [torch.ones_like(o) for o in outputs])))
        torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1]


def test_traced(op: str) -> None:
    x, w, target, b = made(torch.float32, torch.device("cpu"))
    traced = torch.jit.trace(lambda x, w, b: outputs_of(op, x, w, target, b), (x, w, b))
    torch.testing.assert_close(
        tuple(traced(x * 2, w, b)), tuple(outputs_of(op, x * 2, w, target, b)), rtol=1e-4, atol=1e-5
    )


def raw_calls(device: torch.device) -> Iterator[tuple[str, tuple[Any, ...]]]:
    x, w, target, b = made(torch.float32, device)
    for width, kept in ((WIDTH, 0), (WIDTH, 2 * WIDTH), (CLASSES, CLASSES)):
        of_loss = (1, -100, 0.1, 0.7, 5.0, 0.01)
        loss = (x, w, target, b, None, *of_loss, None, None, width, kept)
        yield "linear_cross_entropy", loss
        _, lse, total, logits = torch.ops.fastops.linear_cross_entropy(*loss)
        needs = (None, True, True, True, width)
        yield (
            "linear_cross_entropy_backward",
            (torch.ones((), device=device), x, w, target, lse, total, logits, b, None, *of_loss, *needs),
        )
        log_prob = (x, w, target, b, -100, 0.7, 5.0, True, None, width, kept)
        yield "linear_log_prob", log_prob
        found, entropy, lse, logits = torch.ops.fastops.linear_log_prob(*log_prob)
        yield (
            "linear_log_prob_backward",
            (found, entropy, x, w, target, lse, entropy, logits, b, -100, 0.7, 5.0, *needs),
        )
        yield (
            "linear_likelihood_partial",
            (x, w, target, b, None, 5, CLASSES + 9, -100, 0.1, 0.7, 5.0, False, None, width, kept),
        )


def test_raw_ops(device: torch.device) -> None:
    """torch's own check of custom ops, and their references, of every op that is composed here."""
    calls = list(raw_calls(device))
    assert {name for name, _ in calls} == {name for name, op in OPERATORS.items() if op.composed}
    for name, args in calls:
        raw = getattr(torch.ops.fastops, name).default
        torch.library.opcheck(raw, args)
        found, expected = raw(*args), getattr(torch.ops.fastops, f"{name}_reference")(*args)
        for a, b in zip(found, expected, strict=True):
            if a.shape == b.shape:  # the reference keeps no logits
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
