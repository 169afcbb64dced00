"""What torch.compile makes of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from .accuracy import evaluate, in_float64, incoming_gradients, is_learnable
from .checks import NOT_CHECKED, Outcome
from .forms import Form, Worst, rows_apart
from .target import Target

CHECK = "torch.compile"


def compiled(t: Target) -> Iterator[Outcome]:
    """One graph of a call with every tensor: values and gradients. Without Inductor, whose kernels are not ours."""
    if t.quick or not t.first:
        return
    from torch._dynamo.eval_frame import is_dynamo_supported  # takes seconds to import

    if not is_dynamo_supported():
        yield Outcome(CHECK, True, detail=f"{NOT_CHECKED} this Python has none")
        return
    worst = Worst(t, CHECK)
    form = rows_apart(t)
    torch._dynamo.reset()
    graph = torch.compile(form.ours, backend="aot_eager", fullgraph=True)
    found = evaluate(graph, form.args)
    worst.compare(form, found, form.truth(incoming_gradients(found.outputs)), form.text)
    low = form.with_args(x.bfloat16() if is_learnable(x) else x for x in form.args)
    with torch.autocast(t.path.device.type, torch.bfloat16):
        dtypes = [[x.dtype for x in function(*low.args)] for function in (low.ours, graph)]
    worst.expect(dtypes[0] == dtypes[1], f"results under autocast must be {dtypes[0]}", f"{low.text}: {dtypes[1]}")
    _of_the_last_alone(worst, form, graph)
    _of_duplicate_inputs(worst, form)
    yield worst.outcome()


def _of_the_last_alone(worst: Worst, form: Form, graph: Callable[..., Any]) -> None:
    """Where it alone learns, the same results do as without torch.compile."""
    args = [x.detach().requires_grad_(k == form.learnable[-1]) for k, x in enumerate(form.args)]
    learns = [[x.requires_grad for x in function(*args)] for function in (form.ours, graph)]
    worst.expect(
        learns[0] == learns[1], f"requires_grad must be {learns[0]}", f"{form.names[form.learnable[-1]]} alone"
    )


def _of_duplicate_inputs(worst: Worst, form: Form) -> None:
    """One tensor as two arguments of one shape, the first two that there are."""
    pairs = combinations(form.learnable, 2)
    j, k = next((pair for pair in pairs if form.args[pair[0]].shape == form.args[pair[1]].shape), (0, 0))
    if k == 0:
        return

    def once(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: function(*args[:k], args[j], *args[k:])

    args, names = ((*of[:k], *of[k + 1 :]) for of in (form.args, form.names))
    graph = torch.compile(once(form.ours), backend="aot_eager", fullgraph=True)
    found = evaluate(graph, args)
    truth = in_float64(once(form.plain), args, incoming_gradients(found.outputs))
    worst.compare(replace(form, names=names, args=args), found, truth, f"{form.names[j]} as {form.names[k]}")
