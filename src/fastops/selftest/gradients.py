"""Gradients of any inputs and outputs, by tensors of any strides; and that nothing of the caller's is written."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cases import LAYOUTS, expanded
from ..cases.inputs import LONG_SLICES, reversed_memory
from .accuracy import Evaluation, evaluate, incoming_gradients, is_learnable, tensors_of, wide_copies
from .bits import all_same
from .checks import Outcome, same_results, threads
from .forms import Form, Worst, few, mixed, of_samples, subsets, table
from .refusals import error_of
from .target import Target

LARGEST_SLICED = 5000  # elements


def gradients_asked_for(t: Target) -> Iterator[Outcome]:
    """Of each set of inputs that learn and of outputs that are used, the gradients; nothing else has one."""
    worst = Worst(t, "gradients of any inputs and outputs")
    others = _of_wide_parameters(t), of_samples(t, _vectors(t)), _several(t), _without_a_mean(t)
    for form in itertools.chain(few(t), mixed(t), *others):
        whole = [x.requires_grad_() if is_learnable(x) else x for x in wide_copies(form.args)]
        learnable = [whole[k] for k in form.learnable]
        expected = form.plain(*whole)
        grads = incoming_gradients(form.ours(*form.args))
        wide = wide_copies(grads)
        sets = [used for used in subsets(range(len(expected))) if used]
        options = {"allow_unused": True, "materialize_grads": True}
        truths = [_gradients(expected, learnable, wide, used, **options) for used in sets]
        alone = [_gradients(expected, learnable, wide, (n,), allow_unused=True) for n in range(len(expected))]
        reached = [{k for k, g in zip(form.learnable, of, strict=True) if g is not None} for of in alone]
        for needed in subsets(form.learnable):
            if (t.quick or len(learnable) > 4) and 1 < len(needed) < len(learnable) - 1:
                continue
            args = [x.detach().requires_grad_(k in needed) for k, x in enumerate(form.args)]
            outputs, flags = form.ours(*args), [bool(of & {*needed}) for of in reached]
            names = ", ".join(form.names[k] for k in needed)
            where = f"{form.text} with gradients of {names or 'nothing'}"
            learns = [x.requires_grad for x in outputs]
            worst.expect(
                all(a >= b for a, b in zip(learns, flags, strict=True)) if needed else not any(learns),
                "requires_grad of results",
                where,
            )
            for used, truth in zip(sets, truths, strict=True):
                learn = tuple(n for n, flag in enumerate(flags) if flag and n in used)
                if not learn:
                    continue
                found = _gradients(outputs, [args[k] for k in needed], grads, learn, allow_unused=True)
                for k, gradient in zip(needed, found, strict=True):
                    at = form.learnable.index(k)
                    gradient = torch.zeros_like(args[k]) if gradient is None else gradient
                    worst.gradient(form, at, gradient, truth[at], f"{where}, outputs {used}")
    yield worst.outcome()


def _several(t: Target) -> Iterator[Form]:
    """The other calls of the table that have more than one result."""
    calls = itertools.islice(table(t), 1, None) if t.first and not t.quick else ()
    return (form for form in calls if len(form.ours(*form.args)) > 1)


def _without_a_mean(t: Target) -> Iterator[Form]:
    """Where all weights are 0 the mean is 0 / 0. lse beside it has its gradient all the same."""
    form = next(iter(few(t)))
    if "return_lse" in form.given:
        yield form.with_given({"weight": torch.zeros_like(form.given["weight"]), "reduction": "mean"})


def _of_wide_parameters(t: Target) -> Iterator[Form]:
    """Of float32 the first call with float64 for all but the first tensor, where these may be that."""
    form = next(iter(few(t)))
    args = (form.args[0], *(x.double() if is_learnable(x) else x for x in form.args[1:]))
    there = t.dtype == torch.float32 and len(form.learnable) > 1 and not t.aten  # aten's are rounded in between
    if there and not error_of(lambda: form.ours(*args)):
        yield form.with_args(args)


def _vectors(t: Target) -> Iterator[Any]:
    """Without rows a sum over them may be what is summed."""
    return (sample for sample in t.case.samples if sample.name == "vector")


def _gradients(outputs: Any, inputs: Any, grads: Any, used: tuple[int, ...], **options: Any) -> tuple[Tensor, ...]:
    of = [outputs[k] for k in used], inputs, [grads[k] for k in used]
    return torch.autograd.grad(*of, retain_graph=True, **options)


def incoming(t: Target) -> Iterator[Outcome]:
    """Incoming gradients of any strides: the gradients of contiguous ones, and nothing of the caller's is written."""
    worst = Worst(t, "any incoming gradient")
    names = ("no_rows", "empty", "no_tokens", "shape5x0", *([] if t.quick else ["dims17"]))
    edges = (s for s in t.case.samples if s.name.endswith(names))
    for form in itertools.chain(few(t), of_samples(t, edges), of_samples(t, _vectors(t))):
        for layout in _incoming_layouts(form):
            args = (
                form.args
                if layout in (_of_sum, expanded, reversed_memory, _expanded_in_turn)
                else [_laid_out(x, layout) for x in form.args]
            )
            dense = incoming_gradients(form.ours(*args))
            grads = tuple(_laid_out(g, layout) for g in dense)
            given = [_storage(x) for x in (*args, *tensors_of(tuple(form.given.values())), *grads)]
            before = [x.clone() for x in given]
            found = evaluate(form.ours, tuple(args), grads)
            where = f"{form.text}, {layout.__name__}"
            worst.expect(all_same(given, before), "written to an input", where)
            results = [*found.outputs, *found.gradients]
            worst.expect(_apart(found.outputs), "outputs share memory", where)
            worst.expect(_apart(results, [*args, *grads]), "a result shares memory with an input", where)
            kept = tuple(x.contiguous() for x in args), tuple(g.contiguous() for g in grads)
            _as(t, worst, form.with_args(kept[0]), found, evaluate(form.ours, *kept), kept[1], where)
    yield worst.outcome()


def of_any_size(t: Target) -> Iterator[Outcome]:
    """Incoming gradients far from 1, as a loss that is scaled has them: the gradients are as exact."""
    power = _POWERS.get(t.dtype)
    if power is None:
        return
    worst = Worst(t, "incoming gradients of any size")
    for form in few(t, quick=3 if t.first else 1):
        grads = incoming_gradients(form.ours(*form.args))
        for by in (2.0**power, 2.0**-power):
            scaled = tuple(g * by for g in grads)
            found = evaluate(form.ours, form.args, scaled)
            worst.compare(form, found, form.truth(scaled), f"{form.text}, gradients of {by:.0e}")
    yield worst.outcome()


# float16 has no such numbers.
_POWERS = {torch.bfloat16: 90, torch.float32: 90, torch.float64: 300}


def _incoming_layouts(form: Form) -> tuple[Callable[..., Tensor], ...]:
    """Of more dimensions than kernels take the others would be too large."""
    many = form.args[0].dim() > 16
    return (reversed_memory, _expanded_in_turn) if many else (torch.clone, _of_sum, *LAYOUTS)


def _expanded_in_turn(x: Tensor) -> Tensor:
    """Expanded along every second dimension, so that no two are one in memory."""
    return x[tuple(slice(1 if d % 2 else None) for d in range(x.dim()))].expand(x.shape)


def _of_sum(x: Tensor) -> Tensor:
    return torch.ones((), dtype=x.dtype, device=x.device).expand(x.shape)


def _laid_out(x: Tensor, layout: Callable[..., Tensor]) -> Tensor:
    if x.dim() == 0 or (x.dim() == 1 and layout.__name__ == "transposed"):
        return layout(x) if layout is _of_sum else x
    return layout(x)


def _storage(x: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _apart(results: Sequence[Tensor], others: Sequence[Tensor] = ()) -> bool:
    """Whether no two results, or no result and another, are in one storage."""
    mine, theirs = ([x.untyped_storage().data_ptr() for x in of if x.numel()] for of in (results, others))
    return not {*mine} & {*theirs} if others else len({*mine}) == len(mine)


def _as(
    t: Target, worst: Worst, form: Form, found: Evaluation, other: Evaluation, grads: tuple[Tensor, ...], where: str
) -> None:
    """The same bits, or within the bounds where torch adds up, which promises no more."""
    if same_results(found, other):
        return
    worst.expect(t.case.torchs_sums, "not the bits of contiguous tensors", where)
    worst.compare(form, found, form.truth(grads), where)


def sliced(t: Target) -> Iterator[Outcome]:
    """Tensors of several dimensions that are slices along one of them, or expanded: the bits of contiguous ones."""
    worst = Worst(t, "slices of any dimension")
    samples = (s for s in t.case.samples if not s.large)
    fitting = [f for f in of_samples(t, samples) if _has_dims(f)]
    worst.expect(bool(fitting), "no sample to slice", t.case.name)
    fitting.sort(key=lambda f: -f.args[0].dim())
    of_vectors = [f for f in fitting if f.args[0].dim() > 2 and f.args[0].shape[-1] * t.dtype.itemsize % 16 == 0]
    both = (fitting[: 1 if t.quick else 4], of_vectors[:1] or fitting[:1])
    # A quick run has the one in its first dtype, the other in others.
    for form in both[not t.first] if t.quick else itertools.chain(*both):
        dense = form.with_args(x.contiguous() for x in form.args)
        expected = evaluate(dense.ours, dense.args)
        count, tensors = len(dense.args), (*dense.args, *incoming_gradients(expected.outputs))
        names = (*form.names, *("an incoming gradient" for _ in expected.outputs))
        for k, x in enumerate(tensors):
            for d, slice_of in itertools.product(range(x.dim()), (_narrow, _every_second, _expanded, _spaced)):
                # Of classes that are alike, or where torch adds up what comes in, nearly everything may cancel.
                if t.case.torchs_sums and (k >= count or (k and slice_of is _expanded)):
                    continue
                views = (*tensors[:k], slice_of(x, d), *tensors[k + 1 :])
                kept = tuple(v.contiguous() for v in views)
                of_kept, grads = dense.with_args(kept[:count]), kept[count:]
                other = evaluate(dense.ours, of_kept.args, grads) if slice_of is _expanded else expected
                found = evaluate(dense.ours, views[:count], views[count:])
                _as(t, worst, of_kept, found, other, grads, f"{form.text}, {names[k]} along {d}")
    if t.path.kind == "cpu" and t.first:
        for form in of_samples(t, (s for s in t.case.samples if s.name == LONG_SLICES)):
            dense = form.with_args(x.contiguous() for x in form.args)
            expected = evaluate(dense.ours, dense.args)
            with threads(_MORE_THAN_ROWS):
                found = evaluate(form.ours, form.args)
            worst.expect(same_results(found, expected), "not the bits of contiguous tensors", form.text)
    yield worst.outcome()


_MORE_THAN_ROWS = 7


def _has_dims(form: Form) -> bool:
    return form.args[0].dim() > 1 and all(0 < x.numel() <= LARGEST_SLICED for x in form.args)


def _narrow(x: Tensor, d: int) -> Tensor:
    return torch.cat((x, x, x), d).narrow(d, x.shape[d], x.shape[d])


def _spaced(x: Tensor, d: int) -> Tensor:
    """One number lies between neighbours along it, whose distance is then no whole vectors."""
    inner = x.shape[d + 1 :]
    size = math.prod(inner)
    wide = x.new_zeros(*x.shape[: d + 1], size + 1)[..., :size]
    return (wide.unflatten(-1, inner) if inner else wide[..., 0]).copy_(x)


def _expanded(x: Tensor, d: int) -> Tensor:
    return x.narrow(d, 0, 1).expand(x.shape)


def _every_second(x: Tensor, d: int) -> Tensor:
    return x.repeat_interleave(2, d)[(slice(None),) * d + (slice(1, None, 2),)]
