"""What a backward reads goes through torch's hooks: it may be computed again, or lie elsewhere meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .accuracy import evaluate
from .checks import Outcome, same_results
from .forms import Form, Worst, few, of_calls
from .target import Target


def recomputed(t: Target) -> Iterator[Outcome]:
    """Under ``torch.utils.checkpoint`` and ``save_on_cpu``: the bits of the call by itself."""
    if not t.first:
        return
    worst = Worst(t, "checkpoint and save_on_cpu")
    for form in few(t) if t.quick else of_calls(t):
        alone = evaluate(form.ours, form.args)
        for function in (_checkpointed, _elsewhere):
            found = evaluate(lambda *args: function(form, args), form.args)  # noqa: B023
            worst.expect(same_results(found, alone), f"other bits {function.__name__[1:]}", form.text)
    yield worst.outcome()


def _checkpointed(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = checkpoint(form.ours, *args, use_reentrant=False)
    return found


def _elsewhere(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.autograd.graph.save_on_cpu():
        return form.ours(*args)
