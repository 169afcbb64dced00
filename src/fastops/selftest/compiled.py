"""What torch.compile makes of a call."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .accuracy import evaluate, incoming_gradients, is_learnable
from .checks import NOT_CHECKED, Outcome
from .forms import Worst, rows_apart
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
    yield worst.outcome()
