"""Arguments, autocast, NaN and errors of the public functions; and every check of what these promise."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from ..cases.inputs import DTYPES
from . import gradients, transforms
from .accuracy import evaluate, incoming_gradients, is_learnable, wide_copies
from .checks import MAIN_DTYPES, Check, Outcome, same_bits
from .forms import Worst, few, mixed, of_calls, result_dtype
from .target import Target

LOW = (torch.bfloat16, torch.float16)


def arguments(t: Target) -> Iterator[Outcome]:
    """Each option, and each combination of optional tensors that are not there, by keyword."""
    worst = Worst(t, "every argument")
    for form in of_calls(t):
        found = evaluate(form.ours, form.args)
        worst.compare(form, found, form.truth(incoming_gradients(found.outputs)), form.text)
        dtype = form.given.get("dtype") or result_dtype(t.case, t.dtype)
        worst.expect(found.outputs[0].dtype == dtype, f"result must be {dtype}", form.text)
    yield worst.outcome()


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
        if said := _said(lambda: other.ours(*other.args), none=""):  # noqa: B023
            worst.expect(said.startswith(f"[{t.case.name}] "), said, where)
            continue
        found = evaluate(other.ours, other.args)
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


def mistakes(t: Target) -> Iterator[Outcome]:
    """Of another type each argument, and of another shape each tensor behind the first, is an error that says so."""
    worst = Worst(t, "errors that name the operator")
    form = next(iter(few(t)))
    right = dict(zip(form.names, form.args, strict=True)) | form.given
    for name in inspect.signature(t.case.function).parameters:
        said = _said(lambda: t.case.function(**(right | {name: object()})))  # noqa: B023
        worst.expect(said.startswith(f"[{t.case.name}] ") and name in said, f"{name} of another type", said)
    for name in form.names[1:]:
        said = _said(lambda: t.case.function(**(right | {name: right[name].new_zeros(7, 11, 13)})))  # noqa: B023
        worst.expect(said.startswith(f"[{t.case.name}] "), f"{name} of another shape", said)
    yield worst.outcome()


def wrong_indices(t: Target) -> Iterator[Outcome]:
    """An index that the formula has no place for: an error that says so, on GPUs NaN and no plausible number."""
    worst = Worst(t, "indices out of range")
    form = next(iter(few(t)))
    sizes = {n for x in form.args for n in x.shape}
    whole = [k for k, x in enumerate(form.args) if x.dtype in (torch.int32, torch.int64)]
    for k, index in product(whole, (-7, *sorted(sizes), 1 << 30)):
        x = form.args[k].clone()
        x.view(-1)[x.numel() // 2] = index
        other = form.with_args((*form.args[:k], x, *form.args[k + 1 :]))
        if not _said(lambda: other.plain(*wide_copies(other.args)), none=""):  # noqa: B023
            continue
        where = f"{index} in {form.names[k]}"
        if t.path.device.type == "cpu":
            said = _said(lambda: other.ours(*other.args))  # noqa: B023
            worst.expect(said.startswith(f"[{t.case.name}] ") and form.names[k] in said, said, where)
        else:
            worst.expect(any(bool(x.isnan().any()) for x in other.ours(*other.args)), "no NaN", where)
    yield worst.outcome()


def _said(call: Callable[[], Any], none: str = "no error") -> str:
    try:
        call()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return str(error)
    return none


def _fakes(t: Target) -> Iterator[Outcome]:
    """Of the narrow and the wide dtypes alike, of which a quick run has the first."""
    asked = t.first if t.quick else t.dtype in MAIN_DTYPES
    if asked:
        yield from transforms.fakes(t)


# Those of which each dtype has its own code.
OF_DTYPES: tuple[Check, ...] = (
    arguments,
    gradients.incoming,
    autocast,
    other_dtypes,
    mistakes,
    transforms.forward_mode,
    transforms.second_derivatives,
)
PROMISE_CHECKS: tuple[Check, ...] = (
    *OF_DTYPES,
    gradients.gradients_asked_for,
    gradients.sliced,
    wrong_indices,
    no_numbers,
    transforms.vmap,
    _fakes,
)
