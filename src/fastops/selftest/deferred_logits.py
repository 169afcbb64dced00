"""Logits of a head that :func:`fastops.patch` has with ``loss=True``: what may be done with them before the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..patching import patched as patched_for
from .accuracy import near
from .checks import MAIN_DTYPES, Outcome
from .forms import Worst
from .patched import CLASSES, LanguageModel, of_random_numbers
from .refusals import error_of
from .target import Target

_OPTIONS: tuple[dict[str, Any], ...] = (
    {"reduction": "none"},
    {"reduction": "sum", "ignore_index": 3},
    {"label_smoothing": 0.1},
    {"reduce": False},
    {"size_average": False},
    {"size_average": False, "reduce": True},
)
_SCALED = "0.7 z"
# What may stand between a head and its loss, and what reads the logits there.
_STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    _SCALED: lambda z: z * 0.7,
    "-1.5 z": lambda z: -1.5 * z,
    "z / 3": lambda z: z / 3,
    "a softcap": lambda z: 2.5 * torch.tanh(z / 2.5),
    "a softcap of z / 2, twice": lambda z: 2 * (2.5 * torch.tanh(0.5 * z / 2.5)),
    "a softcap, negated": lambda z: -2.5 * torch.tanh(z / 2.5),
    "float32": lambda z: z.float(),
    "float64": lambda z: z.double(),
    "rows but the first": lambda z: z[:, 1:],
    "one sequence": lambda z: z[1],
    "rows but the last": lambda z: z[..., :-1, :].contiguous(),
    "narrow rows": lambda z: z.narrow(-2, 1, 3),
    "half of the classes": lambda z: z[..., : CLASSES // 2],
    "narrow classes": lambda z: z.narrow(-1, 0, CLASSES // 2),
    "two dimensions": lambda z: z.view(-1, CLASSES).clone(),
    "z + 1": lambda z: z + 1,
    "sorted": lambda z: z.sort(-1).values,
    "relu": lambda z: z.relu(),
    "masked": lambda z: z.masked_fill(z > 1, -2.0),
}


def deferred_logits(t: Target) -> Iterator[Outcome]:
    """Whatever is done with them, loss and gradients are those of the head alone; a gradient that is asked for is kept,
    and they are no others once what they are made of has changed.
    """
    if t.case.name != "linear_cross_entropy" or not (t.first or (t.dtype in MAIN_DTYPES and not t.quick)):
        return
    worst = Worst(t, "logits of a patched head")
    model, (input_ids, labels) = of_random_numbers(t)
    assert isinstance(model, LanguageModel)
    labels = labels.where(labels < CLASSES // 2, 0)
    weight = t.make().integers(CLASSES, below=7).to(t.dtype)
    for options in (*_OPTIONS, {"weight": weight}):
        _same_loss(worst, model, input_ids, labels, _STEPS[_SCALED], f"with {', '.join(options)}", **options)
    for text, step in _STEPS.items():
        _same_loss(worst, model, input_ids, labels, step, text)
    with patched_for(model, loss=True):
        _changed(worst, model, input_ids, labels)
    yield worst.outcome()


def _same_loss(
    worst: Worst,
    model: LanguageModel,
    input_ids: Tensor,
    labels: Tensor,
    step: Callable[[Tensor], Tensor],
    where: str,
    **options: Any,
) -> None:
    def results() -> tuple[Tensor, ...]:
        logits = step(model.head(model.embedding(input_ids)))
        target = labels[..., -logits.shape[-2] :] if logits.dim() == 3 else labels.flatten()[-logits.shape[0] :]
        target = target.where(target >= 0, options.get("ignore_index", -100))
        loss = F.cross_entropy(logits.flatten(0, -2), target.flatten(), **options)
        return loss.detach(), *torch.autograd.grad(loss.sum(), [*model.parameters()])

    expected = results()
    with patched_for(model, loss=True):
        found = results()
    worst.expect(near(found, expected, worst.t.dtype), "other numbers", where)
    worst.expect([x.dtype for x in found] == [x.dtype for x in expected], "another dtype", where)


def _changed(worst: Worst, model: LanguageModel, input_ids: Tensor, labels: Tensor) -> None:
    logits = model.head(model.embedding(input_ids))
    logits.retain_grad()
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    worst.expect(logits.grad is not None, "no gradient", "logits that keep theirs")
    for which in ("input", "weight", "bias"):
        hidden = model.embedding(input_ids)
        logits = model.head(hidden)
        readers = {"a sum": logits.sum, "the loss": partial(F.cross_entropy, logits.flatten(0, 1), labels.flatten())}
        with torch.no_grad():
            {"input": hidden, "weight": model.head.weight, "bias": model.head.bias}[which].mul_(1)
        for reader, call in readers.items():
            found = error_of(call)
            where = f"{reader} of logits whose {which} has changed"
            worst.expect(isinstance(found, RuntimeError), f"no error, got {found!r}", where)
    model.zero_grad(set_to_none=True)
