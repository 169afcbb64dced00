"""Arguments, autocast and NaN of the public functions; and every check of what these promise."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice, product

import torch
from torch import Tensor

from ..cases import by_name
from ..cases.inputs import DTYPES
from . import compiled, gradients, kept, refusals, transforms
from .accuracy import Evaluation, evaluate, incoming_gradients, is_learnable
from .checks import Check, Outcome, same_bits
from .forms import Form, Worst, few, mixed, of_calls, of_pairs, result_dtype, various
from .refusals import error_of
from .slicing import in_slices, narrow_slices
from .target import Target, parameters_of

LOW = (torch.bfloat16, torch.float16)


def arguments(t: Target) -> Iterator[Outcome]:
    """Each option and each two, and each combination of optional tensors that are not there, by keyword, also where
    nothing learns.
    """
    worst = Worst(t, "every argument")
    pairs = of_pairs(t)
    if t.quick:
        pairs = islice(pairs, 0, None, 2) if t.first else iter(())
    for form, narrow in product(chain(of_calls(t), pairs), (False, True)[: 1 + in_slices(t.case)]):
        with narrow_slices() if narrow else contextlib.nullcontext():
            found = evaluate(form.ours, form.args)
            alone = form.ours(*form.args)
        truth = form.truth(incoming_gradients(found.outputs))
        worst.compare(form, found, truth, form.text)
        dtype = form.given.get("dtype") or result_dtype(t.case, t.dtype)
        dtypes = [dtype, *(x.dtype for x in form.by_reference()[1:])]
        worst.expect([x.dtype for x in found.outputs] == dtypes, f"results must be {dtypes}", form.text)
        worst.expect(all(map(_as_exact, found.outputs, truth.outputs)), "rounded to a half type", form.text)
        if t.case.torchs_sums:  # its products may be others where nothing is kept for the backward
            worst.outputs(form, alone, truth.outputs, f"{form.text} where nothing learns")
        else:
            worst.expect(all(map(same_bits, alone, found.outputs)), "other bits where nothing learns", form.text)
    yield worst.outcome()


def _as_exact(found: Tensor, truth: Tensor) -> bool:
    """Not all of several float32 numbers are numbers of a half type, unless the truth's are."""
    return (
        found.dtype != torch.float32
        or found.numel() < 2
        or not any(
            torch.equal(found, found.to(low).float()) and not torch.equal(truth, truth.to(low).double()) for low in LOW
        )
    )


def autocast(t: Target) -> Iterator[Outcome]:
    """Under each dtype of autocast: the dtype of results that the table has, values and gradients."""
    device = t.path.device.type
    worst = Worst(t, "autocast")
    for form in few(t):
        for low in LOW:
            single = torch.float32
            dtypes = {"own": None, "low": low, "single": single, "single on cuda": single if device == "cuda" else None}
            operands, results = (dtypes[key] if t.dtype != torch.float64 else None for key in t.case.autocast)
            cast = form.with_args(x.to(operands) if operands and is_learnable(x) else x for x in form.args)
            with torch.autocast(device, low):
                found = evaluate(form.ours, form.args)
            where = f"{form.text} under {low}"
            truth = cast.truth(incoming_gradients(found.outputs))
            worst.compare(cast, found, truth, where, cast.args[0].dtype)
            dtype = form.given.get("dtype") or results or result_dtype(t.case, t.dtype)
            worst.expect(found.outputs[0].dtype == dtype, f"result must be {dtype}", where)
            if "dtype" in parameters_of(t.case):
                asked = replace(form, given=form.given | {"dtype": low})
                with torch.autocast(device, low):
                    dtype = asked.ours(*form.args)[0].dtype
                worst.expect(dtype == low, f"result must be {low}, as dtype says", where)
    yield worst.outcome()


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


def other_dtypes(t: Target) -> Iterator[Outcome]:
    """Where an argument may have another dtype than the first, values and gradients; else an error that says so."""
    worst = Worst(t, "arguments of other dtypes")
    form = next(iter(few(t)))
    for k, dtype in product(form.learnable[1:], DTYPES):
        if dtype == form.args[k].dtype:
            continue
        other = form.with_args((*form.args[:k], form.args[k].to(dtype), *form.args[k + 1 :]))
        where = f"{form.names[k]} of {dtype}"
        if error := error_of(lambda: other.ours(*other.args)):  # noqa: B023
            worst.expect(str(error).startswith(f"[{t.case.name}] "), str(error), where)
            continue
        found = evaluate(other.ours, other.args)
        dtypes = [x.dtype for x in other.by_reference()]
        worst.expect([x.dtype for x in found.outputs] == dtypes, f"results must be {dtypes}", where)
        grads = incoming_gradients(found.outputs)
        if form.names[k] == "residual":  # their sum is rounded to its dtype, and then normalised
            (first, second, *rest), rounded = other.args, found.outputs[-1]
            worst.expect(same_bits(rounded, (first.double() + second.double()).to(dtype)), "not the sum", where)
            alone = evaluate(other.ours, (rounded.to(first.dtype), torch.zeros_like(second), *rest), grads)
            worst.expect(all(map(same_bits, found.outputs, alone.outputs)), "not normalised as rounded", where)
        else:
            result = found.outputs[0].dtype
            own = result == result_dtype(t.case, t.dtype)
            worst.compare(other, found, other.truth(grads), where, t.dtype if own else result)
    yield worst.outcome()


def as_alone(t: Target) -> Iterator[Outcome]:
    """What an operator of a sum has of the sum has the bits of the operator without one."""
    alone = by_name().get(t.case.name.removeprefix("add_"))
    if alone is None or alone.name == t.case.name:
        return
    worst = Worst(t, f"{alone.name} of the sum")
    for form in few(t):
        normalised, total = form.ours(*form.args)
        given = dict(zip(form.names[2:], form.args[2:], strict=True)) | form.given
        worst.expect(same_bits(total, form.args[0] + form.args[1]), "not the sum", form.text)
        worst.expect(same_bits(normalised, alone.function(total, **given)), "other bits", form.text)
    yield worst.outcome()


def threads(t: Target) -> Iterator[Outcome]:
    """Calls from several Python threads at once, as each by itself."""
    if not t.first:
        return
    worst = Worst(t, "calls from several threads")
    form = next(iter(few(t)))
    calls = [form.with_args(x * (1 + k / 4) if is_learnable(x) else x for x in form.args) for k in range(4)]

    def several(call: Form) -> list[Evaluation]:
        return [evaluate(call.ours, call.args) for _ in range(8)]

    with narrow_slices(), ThreadPoolExecutor(len(calls)) as pool:
        alone = [evaluate(call.ours, call.args) for call in calls]
        for call, expected, found in zip(calls, alone, pool.map(several, calls), strict=True):
            truth = call.truth(incoming_gradients(expected.outputs))
            for each in found:
                pairs = zip(each.outputs + each.gradients, expected.outputs + expected.gradients, strict=True)
                # Another thread's GEMM may be another one.
                worst.expect(t.case.torchs_sums or all(same_bits(a, b) for a, b in pairs), "other bits", call.text)
                worst.compare(call, each, truth, call.text)
    yield worst.outcome()


# Those of which each dtype has its own code.
OF_DTYPES: tuple[Check, ...] = (
    arguments,
    gradients.incoming,
    autocast,
    other_dtypes,
    refusals.mistakes,
    transforms.forward_mode,
    transforms.second_derivatives,
    transforms.forward_over_reverse,
)
PROMISE_CHECKS: tuple[Check, ...] = (
    *OF_DTYPES,
    gradients.gradients_asked_for,
    gradients.sliced,
    refusals.wrong_indices,
    no_numbers,
    no_number_comes_in,
    transforms.vmap,
    transforms.fakes,
    compiled.compiled,
    transforms.traced,
    kept.kernels_run,
    kept.kept,
    as_alone,
    threads,
)
