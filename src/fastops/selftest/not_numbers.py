"""NaN and infinity, in arguments and in what comes in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product

import torch
from torch import Tensor

from ..cases.inputs import HALVES
from .accuracy import Evaluation, evaluate, incoming_gradients, wide_copies
from .bits import same_bits
from .checks import Outcome
from .forms import Form, Worst, few, mixed, table, various
from .target import Target, parameters_of
from .together import on_cpu


def no_numbers(t: Target) -> Iterator[Outcome]:
    """NaN and infinity where the formula has them, and what does not depend on them keeps its bits."""
    worst = Worst(t, "NaN and infinity")
    # A softcap of the first makes numbers of infinity, and a factor of 0 none.
    by_zero = (form for form in table(t) if any(form.given.get(name) == 0 for name in ("alpha", "beta", "scale")))
    for form in chain(few(t, calls=2), by_zero, mixed(t)):
        clean = evaluate(form.ours, form.args)
        grads = incoming_gradients(clean.outputs)
        clean = clean.on_cpu()
        truth = form.truth(grads)
        for k in form.learnable:
            half = form.args[k].numel() // 2
            middle, whole = slice(half, half + 1), slice(None)
            for value, part in (*product(_not_numbers(form.args[k].dtype), [middle]), (-torch.inf, whole)):
                x = form.args[k].clone(memory_format=torch.contiguous_format)
                x.view(-1)[part] = value
                dirty = form.with_arg(k, x)
                found, expected = evaluate(dirty.ours, dirty.args, grads).on_cpu(), dirty.truth(grads)
                where = f"{form.text}, {value} in {'all of ' * (part == whole)}{form.names[k]}"
                for a, b in zip(found.outputs, expected.outputs, strict=True):
                    worst.expect(torch.equal(_class(a), _class(b)), "not where the formula has them", where)
                if value == -torch.inf:
                    wrong = _not_zero(found.gradients, expected.gradients, form.learnable.index(k), x)
                    worst.expect(not wrong, "a gradient where it is 0", where)
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
                    worst.expect(same_bits(a[same], b[same]), "other results changed", where)
    for form, name in product(various(t) if t.case.fixed else (), t.case.fixed):
        if isinstance(given := form.given.get(name), Tensor):
            for dtype in {t.dtype, torch.float32} if t.dtype in HALVES else {t.dtype}:
                _where_the_formula_has_it(worst, form, name, given.to(dtype))
    yield worst.outcome()


def _where_the_formula_has_it(worst: Worst, form: Form, name: str, given: Tensor) -> None:
    """NaN of an argument that does not learn, alone and everywhere."""
    grads = incoming_gradients(form.ours(*form.args))
    for value, part in product(_all_nan(given.dtype), (slice(1, 2), slice(None))):
        x = given.clone()
        x.view(-1)[part] = value
        dirty = form.with_given({name: x})
        found, expected = evaluate(dirty.ours, dirty.args, grads).on_cpu(), dirty.truth(grads)
        where = f"{form.text}, {value} in {name}"
        for a, b in zip(found.outputs, expected.outputs, strict=True):
            worst.expect(torch.equal(_class(a), _class(b)), "not where the formula has it", where)
        for a, b in zip(found.gradients, expected.gradients, strict=True):
            worst.expect(_keeps_nan(a, b), "a number", where)


def no_numbers_in_rows(t: Target) -> Iterator[Outcome]:
    """Likewise of each forward op by itself, in any part of a row that vectors or segments share, also where all other
    numbers of the row's other parts are -inf.
    """
    if t.quick and not t.first:
        return
    wrong: dict[str, str] = {}
    for rows, columns in ((3, 67), (3, 16411))[: 2 if t.first and not t.quick else 1]:
        for call in t.raw(rows, columns):
            if call.op.endswith("_backward") or call.args_of:
                continue
            for k, x in enumerate(call.args):
                if not (isinstance(x, Tensor) and x.is_floating_point() and x.dim() and x.shape[0] == rows):
                    continue
                for text, dirty in chain(_spoilt(x, columns), _at_strides(x)):
                    of_call = call.with_tensors({k: dirty})
                    truth = of_call.reference.with_args(wide_copies(of_call.args))()
                    for n, (a, b) in enumerate(zip(on_cpu(of_call()), truth, strict=True)):
                        # What is kept for a backward may be a number where the results are none.
                        right = torch.equal(_class(a), _class(b)) if n == 0 else not _lost(a, b)
                        if a.is_floating_point() and not right:
                            wrong[call.op] = f"{call.op}, {text} in argument {k}, {rows} rows of {columns}"
    yield Outcome("NaN and infinity in rows", not wrong, detail="; ".join(wrong.values()))


def _lost(found: Tensor, truth: Tensor) -> bool:
    """Whether there is no number where the truth has one."""
    return bool((truth.isfinite() & ~found.isfinite()).any())


def _spoilt(x: Tensor, columns: int) -> Iterator[tuple[str, Tensor]]:
    """Of the second row the first number, the middle one or the last, also where it ends in -inf; and all of it.

    Of what has one number a row, that.
    """
    if x.dim() == 1:
        for value in _not_numbers(x.dtype):
            dirty = x.clone()
            dirty[1] = value
            yield f"{value}", dirty
        return
    dim = next((d for d, n in enumerate(x.shape) if n == columns), x.dim() - 1)
    columns = x.shape[dim]
    for masked, value, at in product((False, True), _not_numbers(x.dtype)[:3], (0, columns // 2, columns - 1)):
        dirty = x.clone()
        row = dirty.movedim(dim, -1)[1]
        if masked:
            row[..., columns // 4 :] = -torch.inf
        row[..., at] = value
        yield f"{value} at {at}" + " of -inf" * masked, dirty
    dirty = x.clone()
    dirty.movedim(dim, -1)[1] = -torch.inf
    yield "-inf throughout", dirty


def _at_strides(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """NaN in the second row of what has another number between any two."""
    if x.dim() > 1:
        apart = x.repeat_interleave(2, -1)[..., ::2]
        apart[1, ..., 0] = torch.nan
        yield "nan at strides", apart


def no_number_comes_in(t: Target) -> Iterator[Outcome]:
    """NaN in an incoming gradient: NaN at least where the formula has it. 0 · NaN is NaN.

    Of infinity, numbers where the formula has them.
    """
    worst = Worst(t, "NaN and infinity that come in")
    for form in various(t):
        grads = incoming_gradients(form.ours(*form.args))
        for k, g in enumerate(grads):
            for value in _not_numbers(g.dtype):
                dirty = g.clone()
                dirty.view(-1)[g.numel() // 2] = value
                incoming = (*grads[:k], dirty, *grads[k + 1 :])
                found, truth = evaluate(form.ours, form.args, incoming).on_cpu(), form.truth(incoming)
                for a, b in zip(found.gradients, truth.gradients, strict=True):
                    if value.isnan():
                        worst.expect(_keeps_nan(a, b), "a number", form.text)
                    elif "row_scale" not in parameters_of(t.case):  # gated units multiply by what may be 0
                        worst.expect(not _lost(a, b), f"no number of {value}", form.text)
    yield worst.outcome()


def _not_zero(found: tuple[Tensor, ...], truth: tuple[Tensor, ...], k: int, x: Tensor) -> bool:
    """Whether what is masked, as a class is, has a number for a gradient where the truth has 0."""
    return bool(((truth[k] == 0) & (found[k] != 0) & found[k].isfinite() & (on_cpu((x,))[0] == -torch.inf)).any())


def _numbers_of(one: Evaluation, other: Evaluation) -> Evaluation:
    """0 where either has no number."""

    def both(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(a.isfinite() & b.isfinite(), a, 0)

    pairs = (one.outputs, other.outputs), (one.gradients, other.gradients)
    return Evaluation(*(tuple(map(both, *pair)) for pair in pairs))


def _not_numbers(dtype: torch.dtype) -> Tensor:
    """Of float32 also NaN of other bits, whose upper half is infinity, or is all ones and so the last before 0."""
    found = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=dtype)
    other = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    return torch.cat([found, other]) if dtype == torch.float32 else found


def _all_nan(dtype: torch.dtype) -> list[Tensor]:
    return [x for x in _not_numbers(dtype) if x.isnan()]


def _keeps_nan(found: Tensor, truth: Tensor) -> bool:
    """Whether there is no number where the truth has none."""
    return not bool((truth.isnan() & ~found.isnan()).any())


def _class(x: Tensor) -> Tensor:
    """0 of a number, else which of the three it is."""
    return torch.where(x.isfinite(), 0, x).double().nan_to_num(3.0, 1.0, 2.0)
