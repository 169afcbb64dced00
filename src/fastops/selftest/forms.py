"""Calls of a public function as functions of their tensors: ours, the formula, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import Any

import torch
from torch import Tensor

from ..cases import Case
from ..cases.case import Call
from ..cases.inputs import HALVES
from .accuracy import Evaluation, counted_in, errors, gradient_error, in_float64, is_learnable, ulps, wide_copies
from .checks import Outcome
from .target import Target, optional_tensors, parameters_of
from .together import on_cpu


@dataclass(frozen=True)
class Form:
    """``args`` are the tensors of a call, but for those that may not require a gradient."""

    case: Case
    text: str
    names: tuple[str, ...]
    args: tuple[Tensor, ...]
    given: dict[str, Any]
    of_plain: dict[str, Any]
    unlike_torch: bool = False
    public: bool = False  # as a call's

    @property
    def arguments(self) -> dict[str, Any]:
        """All of the call, by name."""
        return dict(zip(self.names, self.args, strict=True)) | self.given

    def ours(self, *args: Any) -> tuple[Tensor, ...]:
        return results_of(self.case.function(**self.with_args(args).arguments))

    def plain(self, *args: Any) -> tuple[Tensor, ...]:
        given = dict(zip(self.given, wide_copies(tuple(self.given.values())), strict=True))
        return results_of(self.case.plain(**dict(zip(self.names, args, strict=True)), **(given | self.of_plain)))

    def by_reference(self) -> tuple[Tensor, ...]:
        """Of the plain composition, in the dtypes of the call."""
        return results_of(self.case.reference(**self.arguments))

    def truth(self, grads: Iterable[Tensor], args: Sequence[Any] | None = None) -> Evaluation:
        return in_float64(self.plain, tuple(args or self.args), grads)

    def with_args(self, args: Iterable[Tensor]) -> Form:
        return replace(self, args=tuple(args))

    def with_arg(self, k: int, x: Tensor) -> Form:
        """With this one in place of the k-th."""
        return self.with_args((*self.args[:k], x, *self.args[k + 1 :]))

    def with_given(self, given: dict[str, Any]) -> Form:
        """With these among what is no tensor that may learn."""
        return replace(self, given=self.given | given)

    @property
    def learnable(self) -> list[int]:
        return [k for k, x in enumerate(self.args) if is_learnable(x)]


def results_of(out: Any) -> tuple[Tensor, ...]:
    return tuple(x for x in (out if isinstance(out, tuple) else (out,)) if x is not None)


def form(case: Case, text: str, arguments: dict[str, Any], of_plain: dict[str, Any] | None = None) -> Form:
    order = [name for name in parameters_of(case) if name in arguments]
    tensors = [name for name in order if isinstance(arguments[name], Tensor) and name not in case.fixed]
    given = {name: arguments[name] for name in order if name not in tensors}
    return Form(case, text, tuple(tensors), tuple(arguments[name] for name in tensors), given, of_plain or {})


def of_samples(t: Target, samples: Iterable[Any]) -> Iterator[Form]:
    for sample in samples:
        args = sample.args(t.path.device, t.dtype)
        names = list(parameters_of(t.case))[: len(args)]
        yield form(t.case, sample.name, dict(zip(names, args, strict=True)))


def of_calls(t: Target) -> Iterator[Form]:
    """Every call of the table, and without each combination of its optional tensors.

    A quick run has the combinations of the first, and of one dtype leaves out one of the others' at most.
    """
    optional = optional_tensors(t.case)
    for k, call in enumerate(_calls(t)):
        there = [name for name in optional if call.arguments.get(name) is not None]
        for without in subsets(there):
            if k and t.quick and len(without) > (t.main and not t.first):
                continue
            if any(other in without and name not in without for name, other in call.needs.items()):
                continue
            arguments = call.arguments | dict.fromkeys(without)
            options = {n: v for n, v in arguments.items() if v is None or isinstance(v, int | float | str)}
            yield form(t.case, str(options), arguments, call.plain)


def _calls(t: Target) -> list[Call]:
    """Of the table those that run there."""
    return [call for call in t.case.calls(t.make()) if not (call.public and t.path.kind == "reference")]


def of_pairs(t: Target) -> Iterator[Form]:
    """The options of each two calls of the table together, where neither has what the other changes."""
    calls = [call for call in _calls(t) if not call.unlike_torch]
    if not calls:
        return
    first, *others = calls
    shared = {n: v for n, v in first.arguments.items() if any(call.arguments.get(n) is v for call in others)}
    own = [{n: v for n, v in call.arguments.items() if n not in shared or shared[n] is not v} for call in calls]
    for (one, a), (other, b) in combinations(zip(calls, own, strict=True), 2):
        if not {*a} & {*b}:
            yield form(t.case, f"{_options(a)} and {_options(b)}", shared | a | b, one.plain | other.plain)


def hard(t: Target) -> Iterator[Form]:
    """Samples that hold infinity or are far from 1, with the options of each call, where these are no tensors."""
    parameters = parameters_of(t.case)
    # No powers of 2, by which a product is exact, nor what is 0 in float32 alone: of infinity it makes NaN.
    options = [
        {n: v if v is True else 0.9 * v for n, v in call.arguments.items() if v is True or _is_factor(v)}
        for call in _calls(t)
    ]
    for of_sample in of_samples(t, (sample for sample in t.case.samples if not sample.large)):
        first = of_sample.args[0]
        if not (first.is_floating_point() and first.numel() and first.abs().max() > _FAR):
            continue
        for given in options:
            own = {n: v for n, v in given.items() if n in parameters and n not in of_sample.given}
            if own:
                yield replace(of_sample.with_given(own), text=f"{of_sample.text} with {own}")


_FAR = 1000.0


def _is_factor(x: Any) -> bool:
    return isinstance(x, float) and (x == 0 or abs(x) >= torch.finfo(torch.float32).tiny)


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: "a tensor" if isinstance(value, Tensor) else value for name, value in arguments.items()}


def few(t: Target, quick: int = 1, calls: int = 1) -> Iterator[Form]:
    """A call with every optional tensor, and the smallest inputs; in a quick run of both the first ones alone."""
    found = chain(islice(table(t), calls), of_samples(t, t.case.small_samples))
    yield from islice(found, quick if t.quick else None)


def rows_apart(t: Target) -> Form:
    """The first call, with a result of each row."""
    first = next(iter(few(t)))
    return first.with_given({"reduction": "none"}) if "reduction" in first.given else first


def various(t: Target) -> Iterator[Form]:
    """What ``few`` and ``mixed`` have, and all calls of the table; in a quick run those of the first dtype alone."""
    calls = list(table(t))[1:]
    yield from few(t)
    yield from calls[-1:] if t.quick and not t.first else calls
    yield from mixed(t)


def table(t: Target) -> Iterator[Form]:
    """Every call of the table, the first with every optional tensor."""
    for k, call in enumerate(_calls(t)):
        found = form(t.case, f"call {k}" if k else "every tensor", call.arguments, call.plain)
        yield replace(found, unlike_torch=call.unlike_torch, public=call.public)


def mixed(t: Target) -> Iterator[Form]:
    """Beside a half type the first sample with float32 among what learns, if there is one."""
    samples = (sample for sample in t.case.samples if t.dtype in HALVES and not sample.large)
    for found in of_samples(t, samples):
        if len({found.args[k].dtype for k in found.learnable}) > 1:
            yield found
            return


def subsets(items: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    return chain.from_iterable(combinations(items, n) for n in range(len(items) + 1))


def result_dtype(case: Case, own: torch.dtype) -> torch.dtype:
    return torch.float32 if case.wide_outputs and own in HALVES else own


class Worst:
    """Of what was compared the error that is the largest part of its bound, and what is wrong otherwise."""

    def __init__(self, t: Target, check: str, room: float = 1.0) -> None:
        self.t, self.check, self.room = t, check, room
        self.part, self.error, self.bound, self.at = 0.0, 0.0, 0.0, ""
        self.wrong: dict[str, str] = {}

    def error_of(self, kind: str, error: float, where: str, dtype: torch.dtype | None = None) -> None:
        dtype = dtype or self.t.dtype
        bound = getattr(self.t.bound(dtype), kind) * (1.0 if dtype in HALVES else self.t.case.room)
        bound *= self.room
        self._keep(error, bound, f"{kind} of {where}")

    def _keep(self, error: float, bound: float, where: str) -> None:
        part = error / bound if bound else error
        if not part <= self.part:
            self.part, self.error, self.bound, self.at = part, error, bound, where

    def compare(
        self, form: Form, found: Evaluation, truth: Evaluation, where: str, dtype: torch.dtype | None = None
    ) -> None:
        found = found.on_cpu()
        self.outputs(form, found.outputs, truth.outputs, where, dtype)
        for k, pair in enumerate(zip(found.gradients, truth.gradients, strict=True)):
            self.gradient(form, k, *pair, where, dtype)

    def outputs(self, form: Form, found: Any, truth: Any, where: str, dtype: torch.dtype | None = None) -> None:
        for kind, error in errors(form.case, form.args, Evaluation(found, ()), Evaluation(truth, ())):
            self.error_of(kind, error, where, dtype)

    def gradient(
        self, form: Form, k: int, found: Tensor, truth: Tensor, where: str, dtype: torch.dtype | None = None
    ) -> None:
        """Of the k-th of those that learn. Counted in a finer dtype's steps it has that one's bound."""
        name = form.names[form.learnable[k]]
        coarse, numel = name in form.case.coarse, form.args[0].numel()
        error = gradient_error(form.case, form.args, k, found, truth, numel, coarse)
        dtypes = dtype or self.t.dtype, counted_in(form.case, form.args, found, coarse)
        dtype = min(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        self.error_of("gradient", error, f"{name} in {where}", dtype)

    def small(
        self, bounds: dict[torch.dtype, float], found: Sequence[Tensor], truth: Sequence[Tensor], where: str
    ) -> None:
        """In the digits of the target's dtype, whatever the results'."""
        for n, (one, expected) in enumerate(zip(on_cpu(found), truth, strict=True)):
            dtype = max(one.dtype, self.t.dtype, key=lambda dtype: torch.finfo(dtype).eps)
            bound = max(bounds[dtype], self.t.bound(dtype).gradient)
            self._keep(ulps(one, expected, dtype=dtype), bound, f"{where}, result {n}")

    def expect(self, right: bool, what: str, where: str) -> None:
        if not right:
            self.wrong.setdefault(what, f"{what}: {where}")

    def outcome(self) -> Outcome:
        near = self.error <= self.bound
        detail = "; ".join(
            [*([] if near and self.wrong else [f"worst at {self.at}"] * bool(self.at)), *self.wrong.values()]
        )
        return Outcome(self.check, near and not self.wrong, self.error, self.bound, detail)
