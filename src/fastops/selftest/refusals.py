"""Errors: their type, that they name the operator, and that they come in place of a plausible number."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor, func

from .. import _C
from ..cases import RawCall
from ..cases.inputs import HALVES
from ..cases.refused import OF_ANOTHER_TYPE, REFUSED, UNDERFLOWING
from .accuracy import is_learnable, wide_copies
from .checks import Outcome, is_of_a_kernel, is_refusal, is_statistic
from .forms import Form, Worst, few, results_of, rows_apart
from .target import Target, optional_tensors, parameters_of

# Before 2.13 PyTorch prints in C++ what comes through the stable ABI.
_ERRORS_ARE_PRINTED = torch.__version__ < "2.13"


def invalid_arguments(t: Target) -> Iterator[Outcome]:
    """Of another type each argument, of another shape or device each tensor behind the first, and wrong options, also
    without the tensors that need not be there.
    """
    worst = Worst(t, "errors that name the operator")
    form = next(iter(few(t)))
    right = form.arguments
    alone = right | dict.fromkeys(optional_tensors(t.case))

    def refused(name: str, value: Any, kind: type[Exception], what: str, right: dict[str, Any] = right) -> None:
        error = error_of(lambda: t.case.function(**(right | {name: value})))
        named = is_refusal(error, t.case.name) and (kind is RuntimeError or name in str(error))
        worst.expect(isinstance(error, kind) and named, f"{name} {what}: expected {kind.__name__}", repr(error))

    for name, parameter in parameters_of(t.case).items():
        kind, values = REFUSED.get(name, (TypeError, ()))
        refused(name, object(), OF_ANOTHER_TYPE.get(name, TypeError), "of another type")
        for value in (*values, *(UNDERFLOWING.get(name, ()) if t.dtype != torch.float64 else ())):
            for given, where in ((right, ""), (alone, " without optional tensors")):
                refused(name, value, kind, f"of {value}{where}", given)
        if "float" in str(parameter.annotation):
            refused(name, torch.tensor(1.0), TypeError, "as a tensor")
        if name in t.case.fixed:
            refused(name, right[name].detach().clone().requires_grad_(), RuntimeError, "that learns")
    for name in form.names[1:]:
        refused(name, right[name].new_zeros(7, 11, 13), RuntimeError, "of another shape")
        refused(name, right[name].to("meta"), RuntimeError, "on another device")
    for call in t.case.calls(t.make()):
        if "target" in call.arguments and call.arguments["target"].is_floating_point():
            for index in (0, 1):
                refused("ignore_index", index, RuntimeError, "beside probabilities", call.arguments)
    if t.first and t.path.kind == "cpu":
        error = error_of(lambda: _C.set_isa("none"))  # FASTOPS_CPU_ISA goes through the same function
        worst.expect(
            isinstance(error, ValueError), "a level of kernels that there is not: expected ValueError", repr(error)
        )
    yield worst.outcome()


def shorter_tensors(t: Target) -> Iterator[Outcome]:
    """A raw op refuses tensors that do not fit each other, as its composition does, and so reads nothing behind one."""
    wrong = {}
    for call in t.raw(3, 6):
        for k, shorter in _shorter(call):
            # Of an index that is then out of range the composition on a GPU would end the process: hence the CPU.
            # It ignores statistics and computes its own.
            composition = shorter.reference.with_args(wide_copies(shorter.args))
            if not is_statistic(call, k) and not is_error(error_of(composition), RuntimeError, ValueError):
                continue
            if not is_error(error_of(shorter), RuntimeError):
                wrong[call.op, k] = f"{call.op} takes argument {k} of shape {list(shorter.args[k].shape)}"
    yield Outcome("shapes that do not fit", not wrong, detail="; ".join(wrong.values()))


def _shorter(call: RawCall) -> Iterator[tuple[int, RawCall]]:
    """With one tensor after the other that is shorter by one along one dimension."""
    for k, x in enumerate(call.args):
        for d in range(x.dim() if isinstance(x, Tensor) and x.numel() else 0):
            yield k, call.with_tensors({k: x.narrow(d, 0, x.shape[d] - 1).contiguous()})


def wrong_indices(t: Target) -> Iterator[Outcome]:
    """An index that the formula has no place for: an error that says so, on GPUs NaN and no plausible number."""
    worst = Worst(t, "indices out of range")
    form = rows_apart(t)
    sizes = {n for x in form.args for n in x.shape}
    whole = [k for k, x in enumerate(form.args) if x.dtype in (torch.int32, torch.int64)]
    of_dtypes = [(k, form.args[k].to(dtype)) for k, dtype in product(whole, (torch.int64, torch.int32))]
    accepted = [(k, x) for k, x in of_dtypes if not error_of(lambda: form.ours(*form.args[:k], x, *form.args[k + 1 :]))]  # noqa: B023
    # Of the last one the lower 32 bits are right.
    indices = (-7, -1, *sorted(sizes), 1 << 30, 1 << 32)
    for (k, right), (index, at) in product(accepted, (*product(indices, (0.5,)), (1 << 30, 0.0), (1 << 30, 1.0))):
        if index > torch.iinfo(right.dtype).max:
            continue
        x = right.clone()
        x.view(-1)[min(int(at * x.numel()), x.numel() - 1)] = index
        other = form.with_arg(k, x)
        if not error_of(lambda: other.plain(*wide_copies(other.args))):  # noqa: B023
            continue
        where = f"{index} in {form.names[k]} of {x.dtype}"
        if t.path.device.type == "cpu":
            error = error_of(lambda: other.ours(*other.args))  # noqa: B023
            kind = IndexError if form.names[k] == "target" else RuntimeError
            named = is_refusal(error, t.case.name) and form.names[k] in str(error)
            worst.expect(isinstance(error, kind) and named, f"expected {kind.__name__}", f"{where}: {error!r}")
            first, *rest = other.args
            error = error_of(lambda: func.vjp(lambda x: other.ours(x, *rest), first))  # noqa: B023
            worst.expect(type(error) is kind, f"expected {kind.__name__} under torch.func", f"{where}: {error!r}")
            worst.expect(error_of(other.by_reference) is not None, "results of the composition", where)
            _of_a_batch(worst, form, k, torch.stack((right, x)), where)
        else:
            _no_numbers(worst, form, other, where)
    yield worst.outcome()


def _of_a_batch(worst: Worst, form: Form, k: int, batch: Tensor, where: str) -> None:
    """In a batch, where no value can be looked at, an error or NaN, of the element that has it alone."""

    def call(x: Tensor) -> tuple[Tensor, ...]:
        return form.ours(*form.args[:k], x, *form.args[k + 1 :])

    if not error_of(lambda: func.vmap(call)(batch)):
        right, wrong = zip(*func.vmap(call)(batch), strict=True)
        worst.expect(any(bool(x.isnan().any()) for x in wrong), "no NaN under torch.func.vmap", where)
        worst.expect(not any(bool(x.isnan().any()) for x in right), "NaN in another element of a batch", where)


def _no_numbers(worst: Worst, form: Form, other: Form, where: str) -> None:
    """Of the results, and of the gradient, some are NaN, but not all."""
    first, *others = other.args
    first = first.detach().requires_grad_()
    outputs = other.ours(first, *others)
    worst.expect(any(bool(x.isnan().any()) for x in outputs), "no NaN", where)
    worst.expect(any(not bool(x.isnan().all()) for x in outputs), "NaN in other rows", where)
    (gradient,) = torch.autograd.grad([x.sum() for x in outputs if x.requires_grad], first)
    worst.expect(bool(gradient.isnan().any()), "a gradient without NaN", where)
    worst.expect(not bool(gradient.isnan().all()), "NaN in the gradient of other rows", where)


def refused_alike(t: Target) -> Iterator[Outcome]:
    """Meta tensors, by which fake ones are computed, have the errors of real ones, in the same words.

    Each tensor is one after the other of every other dtype and of several other shapes.
    """
    worst = Worst(t, "errors of fake tensors")
    if t.quick and not t.first:
        return
    for form, learns in product(few(t), (True,) if t.quick else (False, True)):
        right = form.arguments
        for name, own in right.items():
            for x in _others(own) if isinstance(own, Tensor) else ():
                given = right | {name: x}
                learn = [n for n in form.names if learns and is_learnable(given[n])]
                found, fake = (_refusal(t, given, learn, device) for device in (t.path.device, "meta"))
                if isinstance(found, IndexError) and not isinstance(fake, Exception):  # fake tensors have no values
                    continue
                where = f"{name} of {x.dtype} and shape {list(x.shape)} in {form.text}"
                text = f"{where}: {found!r} and {fake!r}"
                worst.expect(type(found) is type(fake) and str(found) == str(fake), "another error or result", text)
                if isinstance(found, Exception):
                    worst.expect(is_refusal(found, t.case.name), "does not name the operator", text)
    yield worst.outcome()


_DTYPES = (*HALVES, torch.float32, torch.float64, torch.complex64, torch.int64, torch.int32, torch.uint8, torch.bool)


def _others(x: Tensor) -> Iterator[Tensor]:
    """``x`` in each other dtype and in other shapes."""
    yield from (x.detach().to(dtype) for dtype in _DTYPES if dtype != x.dtype)
    yield from other_shapes(x)


def other_shapes(x: Tensor) -> Iterator[Tensor]:
    """``x`` without dimensions, with one more, and with other sizes."""
    x = x.detach()
    yield x.new_ones(())
    yield x[None]
    if x.dim():
        yield from (x[..., : x.shape[-1] // 2], x[..., :-1], torch.cat([x, x], -1), x[..., :0], x[:-1], x[:0])


def _refusal(t: Target, given: dict[str, Any], learn: list[str], device: Any) -> Any:
    """The error, or the shapes and dtypes of the results."""
    tensors = {n: v.detach().to(device).requires_grad_(n in learn) for n, v in given.items() if isinstance(v, Tensor)}
    given = given | tensors
    found: list[Any] = []
    error = error_of(lambda: found.extend((list(y.shape), y.dtype) for y in results_of(t.case.function(**given))))
    return error or found


def is_error(error: Exception | None, *kinds: type[Exception]) -> bool:
    """Whether it is one of these. What a kernel did on a GPU, which is a RuntimeError as well, is no refusal."""
    return isinstance(error, kinds) and not is_of_a_kernel(error)


def error_of(call: Callable[[], Any]) -> Exception | None:
    try:
        with _unprinted() if _ERRORS_ARE_PRINTED else nullcontext():
            call()
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return error
    return None


@contextmanager
def _unprinted() -> Iterator[None]:
    """Without what C++ writes to stderr, which people would take for errors of the selftest. For one thread alone.

    Nor is the last word of a process that ends here to be seen: which check it was is in the report.
    """
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
