"""NaN and infinity, in arguments and in what comes in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from .accuracy import Evaluation, evaluate, incoming_gradients
from .checks import Outcome, same_bits
from .forms import Worst, few, mixed, various
from .target import Target


def no_numbers(t: Target) -> Iterator[Outcome]:
    """NaN and infinity where the formula has them, and what does not depend on them keeps its bits."""
    worst = Worst(t, "NaN and infinity")
    for form in chain(few(t), mixed(t)):
        clean = evaluate(form.ours, form.args)
        grads = incoming_gradients(clean.outputs)
        truth = form.truth(grads)
        for k in form.learnable:
            for value in _not_numbers(form.args[k].dtype):
                x = form.args[k].clone(memory_format=torch.contiguous_format)
                x.view(-1)[x.numel() // 2] = value
                dirty = form.with_args((*form.args[:k], x, *form.args[k + 1 :]))
                found, expected = evaluate(dirty.ours, dirty.args, grads), dirty.truth(grads)
                where = f"{form.text}, {value} in {form.names[k]}"
                for a, b in zip(found.outputs, expected.outputs, strict=True):
                    worst.expect(torch.equal(_class(a), _class(b)), "not where the formula has them", where)
                if not t.quick or value == -torch.inf:  # as what is masked is
                    worst.compare(form, _numbers_of(found, expected), _numbers_of(expected, found), where)
                if t.case.rounds_between:
                    continue
                every = (x.outputs + x.gradients for x in (found, clean, expected, truth))
                numbers = x.isfinite().cpu(), expected.outputs[0].isfinite()
                for a, b, c, d in zip(*every, strict=True):
                    same = c == d
                    # Of what has no number itself, or a result that has none, the gradient may be either.
                    for of in numbers:
                        if same.dim() and of.dim() and same.shape[:-1] == of.shape[:-1]:
                            same = same & (of if same.shape == of.shape else of.all(-1, keepdim=True))
                    same = same.to(a.device)
                    worst.expect(same_bits(a[same], b[same]), "other results changed", where)
    yield worst.outcome()


def no_number_comes_in(t: Target) -> Iterator[Outcome]:
    """NaN in an incoming gradient: NaN at least where the formula has it. 0 · NaN is NaN."""
    worst = Worst(t, "NaN that comes in")
    for form in various(t):
        grads = incoming_gradients(form.ours(*form.args))
        for k, g in enumerate(grads):
            for value in (x for x in _not_numbers(g.dtype) if x.isnan()):
                dirty = g.clone()
                dirty.view(-1)[g.numel() // 2] = value
                incoming = (*grads[:k], dirty, *grads[k + 1 :])
                found, truth = evaluate(form.ours, form.args, incoming), form.truth(incoming)
                for a, b in zip(found.gradients, truth.gradients, strict=True):
                    worst.expect(not bool((b.isnan() & ~a.isnan().cpu()).any()), "a number", form.text)
    yield worst.outcome()


def _numbers_of(one: Evaluation, other: Evaluation) -> Evaluation:
    """0 where either has no number."""

    def both(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a.isfinite() & b.isfinite().to(a.device), a, 0)

    pairs = (one.outputs, other.outputs), (one.gradients, other.gradients)
    return Evaluation(*(tuple(map(both, *pair)) for pair in pairs))


def _not_numbers(dtype: torch.dtype) -> Tensor:
    """Of float32 also NaN of other bits, whose upper half is infinity, or is all ones and so the last before 0."""
    found = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype)
    other = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    return torch.cat([found, other]) if dtype == torch.float32 else found


def _class(x: Tensor) -> Tensor:
    """0 of a number, else which of the three it is."""
    return torch.where(x.isfinite(), 0, x).detach().cpu().double().nan_to_num(3.0, 1.0, 2.0)
