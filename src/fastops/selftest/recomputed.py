"""What a backward reads goes through torch's hooks: it may meanwhile be computed again, lie elsewhere, or change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .accuracy import Evaluation, evaluate, incoming_gradients, near
from .checks import Outcome, same_results
from .forms import Form, Worst, few, of_calls
from .refusals import error_of
from .target import Target
from .together import on_cpu
from .transforms import SECOND, double_backward, third_derivatives


def recomputed(t: Target) -> Iterator[Outcome]:
    """Under ``torch.utils.checkpoint`` and ``save_on_cpu``: the bits of the call by itself.

    Under save_on_cpu a backward too has the same bits, and second and third derivatives are near.
    """
    if not t.first:
        return
    worst = Worst(t, "checkpoint and save_on_cpu")
    for form in few(t) if t.quick else of_calls(t):
        alone = evaluate(form.ours, form.args)
        for function in (_checkpointed, _elsewhere):
            found = evaluate(lambda *args: function(form, args), form.args)  # noqa: B023
            worst.expect(same_results(found, alone), f"other bits {function.__name__[1:]}", form.text)
    for form in few(t):
        alone, second = evaluate(form.ours, form.args), _second_derivatives(form)
        with torch.autograd.graph.save_on_cpu():
            found, again = evaluate(form.ours, form.args), _second_derivatives(form)
        worst.expect(same_results(found, alone), "other bits of a backward there", form.text)
        worst.small(SECOND, again, [x.double() for x in on_cpu(second)], f"second derivatives of {form.text}")
        third = third_derivatives(form.ours, form.args, form.learnable)
        with torch.autograd.graph.save_on_cpu():
            again = third_derivatives(form.ours, form.args, form.learnable)
        worst.expect(near(again, third, t.dtype, 1e-3), "another third derivative", form.text)
    yield worst.outcome()


def _second_derivatives(form: Form) -> tuple[Tensor, ...]:
    learn = form.learnable
    grads = incoming_gradients(form.ours(*form.args))
    return double_backward(form.ours, form.args, grads, incoming_gradients(tuple(form.args[k] for k in learn)), learn)


def changed(t: Target) -> Iterator[Outcome]:
    """What is changed in place before a backward: torch's error, or the gradients of what it was."""
    if not t.first:
        return
    worst = Worst(t, "changed before the backward")
    for form in few(t):
        alone = evaluate(form.ours, form.args)
        tensors = (*form.names, *(name for name, x in form.given.items() if isinstance(x, Tensor)))
        for which in (*tensors, *range(len(alone.outputs))):
            found = _after_a_change(form, which, incoming_gradients(alone.outputs))
            text = f"result {which}" if isinstance(which, int) else which
            worst.expect(found is None or same_results(found, alone), "a wrong gradient", f"{text} of {form.text}")
    for form in chain(few(t), of_calls(t)):
        args = [x.detach().clone().requires_grad_(k in form.learnable) for k, x in enumerate(form.args)]
        for k, out in enumerate(form.ours(*args)):
            error = error_of(lambda: out.mul_(1.0))  # noqa: B023
            worst.expect(error is None, "a result cannot be changed in place", f"{k} of {form.text}: {error}")
    yield worst.outcome()


def _after_a_change(form: Form, which: str | int, grads: tuple[Tensor, ...]) -> Evaluation | None:
    """Of an argument by its name, or a result by its number. None where torch refuses the backward."""
    given = {n: x.clone() if isinstance(x, Tensor) else x for n, x in form.given.items()}
    copies = {n: x.detach().clone() for n, x in zip(form.names, form.args, strict=True)}
    own = replace(form, args=tuple(copies.values()), given=given)
    learning = [own.args[k].requires_grad_() for k in own.learnable]
    outputs = own.ours(*own.args)
    results = tuple(x.detach().clone() for x in outputs)
    with torch.no_grad():
        (outputs[which] if isinstance(which, int) else (given | copies)[which]).zero_()
    try:
        return Evaluation(results, torch.autograd.grad(outputs, learning, grads))
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        return None


def _checkpointed(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = checkpoint(form.ours, *args, use_reentrant=False)
    return found


def _elsewhere(form: Form, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.autograd.graph.save_on_cpu():
        return form.ours(*args)
