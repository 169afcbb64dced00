"""Arguments and autocast of the public functions; and every check of what these promise."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, product
from typing import Any

import torch
from torch import Tensor

from ..cases import by_name
from ..cases.inputs import DTYPES, HALVES
from . import (
    compiled,
    deferred_logits,
    gradients,
    integrated,
    kept,
    left_alone,
    modules,
    not_numbers,
    overridden,
    patched,
    recomputed,
    refusals,
    rotary,
    scripted,
    transforms,
)
from .accuracy import Evaluation, evaluate, incoming_gradients, is_learnable, ulps
from .bits import all_same, same_bits
from .checks import Check, Outcome, default_dtype, is_refusal, same_results
from .forms import Form, Worst, few, hard, of_calls, of_pairs, of_samples, result_dtype, results_of, table
from .refusals import error_of
from .slicing import in_slices, narrow_slices
from .target import Target, parameters_of
from .together import on_cpu

LOW = (torch.bfloat16, torch.float16)
_MANY_ROWS = (1 << 18) + 3  # of fewer a GPU, whose sums are a tree behind short chains, would round few
_OF_SUMS = 3.0  # one for rounding, the others for a product that has other bits in another call
_OF_HARD_NUMBERS = 12.0  # times the bounds: a scale of 2 doubles the power that cancels in a gradient


def arguments(t: Target) -> Iterator[Outcome]:
    """Each option and each two, and each combination of optional tensors that are not there, by keyword, also where
    nothing learns.
    """
    worst = Worst(t, "every argument")
    pairs = of_pairs(t)
    if t.quick:
        pairs = islice(pairs, 0, None, 2) if t.first else iter(())
    for form in chain(of_calls(t), pairs):
        runs = [_with_and_without_gradients(form)]
        if in_slices(t.case):
            with narrow_slices():
                runs.append(_with_and_without_gradients(form))
        truth = form.truth(incoming_gradients(runs[0][0].outputs))
        for run in runs:
            _of_arguments(worst, form, truth, *run)
        _under_no_grad(worst, form, runs[0][1])
    yield worst.outcome()


def _under_no_grad(worst: Worst, form: Form, expected: tuple[Tensor, ...]) -> None:
    """What would learn elsewhere, of whatever kind, is as if nothing did, and nothing is written."""
    given = {n: x.detach().clone() for n, x in form.given.items() if isinstance(x, Tensor)}
    learn = form.with_given({n: x.requires_grad_(is_learnable(x)) for n, x in given.items()})
    args = [x.detach().clone().requires_grad_(is_learnable(x)) for x in form.args]
    with torch.no_grad():
        found = learn.ours(*args)
    if not form.case.torchs_sums:
        worst.expect(all_same(on_cpu(found), expected), "other bits under torch.no_grad", form.text)
    own = [x for x in form.given.values() if isinstance(x, Tensor)]
    worst.expect(all_same([*args, *given.values()], [*form.args, *own]), "written under torch.no_grad", form.text)


def _with_and_without_gradients(form: Form) -> tuple[Evaluation, tuple[Tensor, ...]]:
    return evaluate(form.ours, form.args).on_cpu(), on_cpu(form.ours(*form.args))


def _of_arguments(worst: Worst, form: Form, truth: Evaluation, found: Evaluation, alone: tuple[Tensor, ...]) -> None:
    case = form.case
    worst.compare(form, found, truth, form.text)
    dtype = form.given.get("dtype") or result_dtype(case, worst.t.dtype)
    dtypes = [dtype, *(x.dtype for x in (form.by_reference()[1:] if len(found.outputs) > 1 else ()))]
    worst.expect([x.dtype for x in found.outputs] == dtypes, f"results must be {dtypes}", form.text)
    worst.expect(all(map(_as_exact, found.outputs, truth.outputs)), "rounded to a narrower type", form.text)
    if case.torchs_sums:  # its products may be others where nothing is kept for the backward
        worst.outputs(form, alone, truth.outputs, f"{form.text} where nothing learns")
    else:
        worst.expect(all_same(alone, found.outputs), "other bits where nothing learns", form.text)


def options_of_hard_numbers(t: Target) -> Iterator[Outcome]:
    """Each option of the table, of samples that hold infinity or are far from 1."""
    # Of float64 the truth, with as many digits, is no nearer.
    if t.dtype == torch.float64 or ((t.quick or t.path.lower) and not t.first):
        return
    worst = Worst(t, "options of hard numbers", room=_OF_HARD_NUMBERS)
    for form in hard(t):
        found = evaluate(form.ours, form.args)
        worst.compare(form, found, form.truth(incoming_gradients(found.outputs)), form.text)
    yield worst.outcome()


def _as_exact(found: Tensor, truth: Tensor) -> bool:
    """Not all of several float32 numbers are a half type's, nor float64 numbers float32's, unless the truth's are."""
    lower = LOW if found.dtype == torch.float32 else (torch.float32,) if found.dtype == torch.float64 else ()
    return found.numel() < (2 if found.dtype == torch.float32 else 1) or not any(
        torch.equal(found, found.to(low).to(found.dtype)) and not torch.equal(truth, truth.to(low).double())
        for low in lower
    )


def autocast(t: Target) -> Iterator[Outcome]:
    """Under each dtype of autocast: the dtype of results that the table has, values and gradients."""
    device = t.path.device.type
    worst = Worst(t, "autocast")
    for form in few(t):
        for low in LOW:
            own = t.dtype == torch.float64
            operands, results = (None if own else _autocast_dtype(which, device, low) for which in t.case.autocast)
            cast = form.with_args(x.to(operands) if operands and is_learnable(x) else x for x in form.args)
            with torch.autocast(device, low):
                found = evaluate(form.ours, form.args)
            where = f"{form.text} under {low}"
            truth = cast.truth(incoming_gradients(found.outputs))
            worst.compare(cast, found, truth, where, cast.args[0].dtype)
            _of_the_head(worst, form, found, truth, where)
            dtype = form.given.get("dtype") or results or result_dtype(t.case, t.dtype)
            worst.expect(found.outputs[0].dtype == dtype, f"result must be {dtype}", where)
            if "dtype" in parameters_of(t.case):
                for wanted in (low, torch.float64):
                    asked = form.with_given({"dtype": wanted})
                    with torch.autocast(device, low):
                        found = evaluate(asked.ours, form.args)
                    dtype = found.outputs[0].dtype
                    worst.expect(dtype == wanted, f"result must be {wanted}, as dtype says", where)
                    if wanted == torch.float64:  # in which all is computed
                        truth = asked.truth(incoming_gradients(found.outputs))
                        worst.compare(asked, found, truth, f"{where} with dtype={wanted}")
    if t.case.autocast[0] == "low" and t.dtype != torch.float64:
        _with_one_cast(worst, next(iter(few(t))), device)
    if t.dtype != torch.float64:
        _with_fixed_cast(worst, next(iter(few(t))), device)
        _of_every_call(worst, device)
    _of_another_device(worst, next(iter(few(t))), "cpu" if device == "cuda" else "cuda")
    yield worst.outcome()


def _of_the_head(worst: Worst, form: Form, found: Evaluation, truth: Evaluation, where: str) -> None:
    """The gradient of a head's weight, which is a sum over all tokens, is not rounded to what its product has."""
    if "linear_weight" in form.names:
        k = form.learnable.index(form.names.index("linear_weight"))
        exact = _as_exact(found.gradients[k].cpu(), truth.gradients[k])
        worst.expect(exact, "the weight's gradient is rounded to a half type", where)


def _of_every_call(worst: Worst, device: str) -> None:
    """The dtype of results does not depend on the other arguments, but for the one that says it."""
    case, low = worst.t.case, LOW[0]
    results = _autocast_dtype(case.autocast[1], device, low) or result_dtype(case, worst.t.dtype)
    for form in table(worst.t):
        with torch.autocast(device, low):
            found = form.ours(*form.args)[0].dtype
        dtype = form.given.get("dtype") or results
        worst.expect(found == dtype, f"result must be {dtype}", form.text)


def _autocast_dtype(which: str, device: str, low: torch.dtype) -> torch.dtype | None:
    """Of what a case says of autocast; None: no other than without."""
    single = torch.float32
    return {"low": low, "single": single, "single on cuda": single if device == "cuda" else None}.get(which)


def _of_another_device(worst: Worst, form: Form, device: str) -> None:
    """Autocast of one type of device leaves tensors of another alone."""
    alone, before = evaluate(form.ours, form.args), torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, True)
    try:
        found = evaluate(form.ours, form.args)
    finally:
        torch.set_autocast_enabled(device, before)
    worst.expect(same_results(found, alone), f"other bits under autocast of {device}", form.text)


def _with_one_cast(worst: Worst, form: Form, device: str) -> None:
    """Of operands that autocast casts one or all but one may have its dtype already."""
    for k, low, others in product(form.learnable, LOW, (False, True)):
        args = [x.to(low) if n in form.learnable and (n == k) != others else x for n, x in enumerate(form.args)]
        mixed = form.with_args(args)
        cast = form.with_args(x.to(low) if n in form.learnable else x for n, x in enumerate(args))
        with torch.autocast(device, low):
            found, dtypes = evaluate(mixed.ours, mixed.args), [x.dtype for x in cast.ours(*cast.args)]
        where = f"{form.text}, {'all but ' if others else ''}{form.names[k]} of {low}"
        worst.compare(cast, found, cast.truth(incoming_gradients(found.outputs)), where, low)
        worst.expect([x.dtype for x in found.outputs] == dtypes, f"results must be {dtypes}", where)


def _with_fixed_cast(worst: Worst, form: Form, device: str) -> None:
    """What does not learn may have autocast's dtype, whatever the others have."""
    fixed = {name: x for name in form.case.fixed if isinstance(x := form.given.get(name), Tensor)}
    for low in LOW if fixed else ():
        cast = form.with_given({name: x.to(low) for name, x in fixed.items()})
        with torch.autocast(device, low):
            found = evaluate(cast.ours, cast.args)
        if form.case.autocast[0] == "low":
            cast = cast.with_args(x.to(low) if is_learnable(x) else x for x in cast.args)
        where = f"{form.text}, {', '.join(fixed)} of {low}"
        worst.compare(cast, found, cast.truth(incoming_gradients(found.outputs)), where, cast.args[0].dtype)


def other_dtypes(t: Target) -> Iterator[Outcome]:
    """Where an argument may have another dtype than the first, values and gradients; else an error that says so."""
    worst = Worst(t, "arguments of other dtypes")
    form = next(iter(few(t)))
    _with_numbers(worst, form)
    for k, dtype in product(form.learnable[1:], DTYPES):
        if dtype == form.args[k].dtype:
            continue
        other = form.with_arg(k, form.args[k].to(dtype))
        where = f"{form.names[k]} of {dtype}"
        if error := error_of(lambda: other.ours(*other.args)):  # noqa: B023
            worst.expect(is_refusal(error, t.case.name), str(error), where)
            continue
        found = evaluate(other.ours, other.args)
        dtypes = [x.dtype for x in other.by_reference()]
        worst.expect([x.dtype for x in found.outputs] == dtypes, f"results must be {dtypes}", where)
        grads = incoming_gradients(found.outputs)
        if form.names[k] == "residual":  # their sum is rounded to its dtype, and then normalised
            (first, second, *rest), rounded = other.args, found.outputs[-1]
            worst.expect(same_bits(rounded, (first.double() + second.double()).to(dtype)), "not the sum", where)
            alone = evaluate(other.ours, (rounded.to(first.dtype), torch.zeros_like(second), *rest), grads)
            worst.expect(all_same(found.outputs, alone.outputs), "not normalised as rounded", where)
            truth = other.truth(grads, (rounded, torch.zeros_like(second), *rest))
            worst.gradient(other, 0, found.gradients[0], truth.gradients[0], where)
        else:
            result = found.outputs[0].dtype
            own = result == result_dtype(t.case, t.dtype)
            worst.compare(other, found, other.truth(grads), where, t.dtype if own else result)
    if t.first:
        _of_other_numbers(worst)
        with default_dtype(torch.float64):
            _of_other_numbers(worst, " where float64 is the default")
    yield worst.outcome()


def _of_other_numbers(worst: Worst, also: str = "") -> None:
    """Of integers and complex numbers what torch's own op gives, or an error that names the operator."""
    case, device = worst.t.case, worst.t.path.device
    for sample, dtypes in product(case.small_samples, _OTHERS):
        args = tuple(
            _of_numbers(x, dtypes[k % len(dtypes)]) if is_learnable(x) else x
            for k, x in enumerate(sample.args(device, torch.float32))
        )
        wanted: tuple[dict[str, Any], ...] = ({},)
        if "dtype" in parameters_of(case) and len(args) < 1 + [*parameters_of(case)].index("dtype"):
            wanted = ({}, {"dtype": torch.float32})
        for options in wanted:
            where = f"{sample.name} of {', '.join(map(str, dtypes))}{also} {options or ''}"
            torchs, error = case.torch_op, error_of(partial(case.function, *args, **options))
            if torchs is None or error_of(partial(torchs, *args, **options)):
                worst.expect(not error or is_refusal(error, case.name), str(error), where)
                continue
            if error:
                worst.expect(not options and is_refusal(error, case.name), str(error), where)
                continue
            ours = results_of(case.function(*args, **options))
            for a, b in zip(ours, results_of(torchs(*args, **options)), strict=True):
                near = a.dtype == b.dtype and torch.allclose(_wide(a), _wide(b), rtol=1e-5, atol=1e-6, equal_nan=True)
                worst.expect(near, "not torch's own", where)


# Of the first argument, the second and so on in turn.
_OTHERS = (torch.int32,), (torch.uint8,), (torch.bool,), (torch.complex64,), (torch.int32, torch.uint8)


def _of_numbers(x: Tensor, dtype: torch.dtype) -> Tensor:
    return (3 * x).abs().mul((1 + 0.5j) if dtype.is_complex else 1).to(dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float64))


def _with_numbers(worst: Worst, form: Form) -> None:
    """A number, a tensor of no dimensions, does not widen what has some, as in torch's arithmetic."""
    for k, dtype in product(form.learnable[1:], (*DTYPES, torch.complex64)):
        other = form.with_arg(k, form.args[k].mean().to(dtype))
        if not error_of(lambda: other.ours(*other.args)):  # noqa: B023
            found, expected = other.ours(*other.args)[0].dtype, torch.result_type(form.args[0], other.args[k])
            where = f"{form.names[k]} a number of {dtype}"
            worst.expect(found == expected, f"result must be {expected}", where)
            plain = other.by_reference()[0].dtype
            worst.expect(plain == expected, f"the composition's result must be {expected}", where)


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
    if ("rms" in alone.name and t.dtype in HALVES) or t.dtype == torch.float32:
        _eps_of_the_sum(worst, alone.function)
    yield worst.outcome()


def _eps_of_the_sum(worst: Worst, alone: Any) -> None:
    """Of a wide residual it is the sum's dtype whose eps is the default, beside numbers whose squares are as small."""
    make = worst.t.make()
    x, residual = make(5, 24, scale=1e-6), make(5, 24, scale=1e-6).double()
    normalised, total = worst.t.function(x, residual, (24,))
    expected = alone(total, (24,))
    near = torch.allclose(normalised.double(), expected.double(), rtol=1e-2, atol=1e-2)
    worst.expect(near, "another eps", "a residual of float64")


def sums_of_losses(t: Target) -> Iterator[Outcome]:
    """Of many rows' losses, in float64. These are equal, so that each step of a chain in float32 rounds alike."""
    if "reduction" not in parameters_of(t.case) or t.dtype != torch.float32:
        return
    first = next(of_samples(t, t.case.small_samples))
    many = (
        x[:1].repeat(_MANY_ROWS, *[1] * (x.dim() - 1)) if n in ("input", "target") else x
        for n, x in zip(first.names, first.args, strict=True)
    )
    form = first.with_args(many)
    each, total, mean = (form.with_given({"reduction": of}).ours(*form.args)[0] for of in ("none", "sum", "mean"))
    expected = each.double().sum()
    error = max(ulps(total, expected), ulps(mean, expected / _MANY_ROWS))
    yield Outcome("sums of losses", error <= _OF_SUMS, error, _OF_SUMS, detail=f"{_MANY_ROWS} equal rows")


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
                # Another thread's GEMM may be another one.
                worst.expect(t.case.torchs_sums or same_results(each, expected), "other bits", call.text)
                worst.compare(call, each, truth, call.text)
        for rows, columns, raw in ((*size, raw) for size in ((1, 70001), (257, 256)) for raw in t.raw(*size)):
            once = raw()
            for again in pool.map(lambda _: raw(), range(len(calls))):  # noqa: B023
                worst.expect(all_same(again, once), "other bits", f"{raw.op}, {rows} rows of {columns}")
    yield worst.outcome()


# Those of which each dtype has its own code.
OF_DTYPES: tuple[Check, ...] = (
    arguments,
    gradients.incoming,
    autocast,
    other_dtypes,
    refusals.invalid_arguments,
    transforms.forward_mode,
    transforms.second_derivatives,
    transforms.forward_over_reverse,
)
PROMISE_CHECKS: tuple[Check, ...] = (
    *OF_DTYPES,
    gradients.gradients_asked_for,
    gradients.of_any_size,
    gradients.sliced,
    refusals.shorter_tensors,
    refusals.wrong_indices,
    refusals.refused_alike,
    not_numbers.no_numbers,
    not_numbers.no_number_comes_in,
    transforms.vmap,
    transforms.fakes,
    compiled.compiled,
    transforms.traced,
    kept.kernels_run,
    kept.kept,
    kept.products,
    kept.copies,
    recomputed.recomputed,
    recomputed.changed,
    as_alone,
    overridden.overridden,
    modules.modules,
    scripted.scripted,
    patched.patched,
    left_alone.left_alone,
    deferred_logits.deferred_logits,
    integrated.integrations,
    rotary.rotary_tables,
    sums_of_losses,
    threads,
)
