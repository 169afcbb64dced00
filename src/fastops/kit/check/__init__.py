"""kit.check: what a PyTorch op has to stand, tried on one of yours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import KitError, NoCompiler
from . import cuda, derivatives, graphs, inputs, sizes, values
from .case import GIVEN, Case, Skip
from .report import CheckFailed, Outcome, Report

__all__ = ["CheckFailed", "Outcome", "Report", "check"]

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# In the order in which they are printed. Each returns what its line says.
_EVERYWHERE: dict[str, Callable[[Case], str]] = {
    "call": values.call,
    "inputs stay as they are": values.untouched,
    "equal inputs, equal bits": values.same_bits,
    "dtypes": values.dtypes,
    "other sizes": sizes.other_sizes,
    "NaN and infinity": sizes.special_values,
    "gradient": derivatives.gradient,
    "second gradient": derivatives.second_gradient,
    "frozen inputs": derivatives.frozen_inputs,
    "forward mode": derivatives.forward_mode,
    "strided inputs": inputs.strided,
    "strided gradients": inputs.strided_gradients,
    "expanded gradients": inputs.expanded_gradients,
    "empty": inputs.empty,
    "0-d": inputs.zero_dim,
    "vmap": graphs.vmap,
    "vmap of the gradient": graphs.vmap_of_gradient,
    "fake": graphs.fake,
    "opcheck": graphs.opcheck,
    "torch.compile": graphs.compiled,
}
_ON_CUDA: dict[str, Callable[[Case], str]] = {
    "CPU against CUDA": cuda.against_cpu,
    "side stream": cuda.side_stream,
    "CUDA graph": cuda.graph,
    "second GPU": cuda.second_gpu,
}
_TITLES = (*_EVERYWHERE, *_ON_CUDA, "CPU", "CUDA")


def check(
    op: Callable[..., Any],
    *samples: Any,
    dtypes: Sequence[torch.dtype] = _DTYPES,
    unsupported: Mapping[str, str] | None = None,
    backend: str = "aot_eager",
    kwargs: Mapping[str, Any] | None = None,
    gradient: Callable[..., Any] | str | None = None,
    reference: Callable[..., Any] | None = None,
) -> Report:
    """Tries ``op`` on each sample, prints a line for every property, and raises if one does not hold.

    First and second derivatives against finite differences, in float64, and those of some inputs alone; forward mode
    against the backward; the dtypes against float64; samples made larger, and NaN and infinities in them, against the
    reference; the fake against the result; strided, empty and 0-d inputs, strided and expanded gradients; inputs that
    must stay as they are, and equal bits from equal inputs; vmap, vmap of the gradient, ``torch.library.opcheck`` and
    torch.compile. On a GPU, where samples on the CPU are tried too, besides: CPU against CUDA, a side stream, a CUDA
    graph, a second GPU.

    Any error of the op's is a failure, but in what it is said not to do: that must raise an error which names the op,
    and is a line ``refused``.

    Args:
        op: a function of tensors: made by the kit or not.
        samples: what to call it with: a Tensor, or a tuple of arguments. Keep them small, and away from kinks, at
            which finite differences have no meaning.
        dtypes: the floating-point ones that the op takes; of the half types, float32 and float64 it must refuse the
            others. Derivatives are tried in float64 only.
        unsupported: what the op does not do, by the property's title, and why: ``{"0-d": "a row has a length"}``; also
            ``"CPU"`` and ``"CUDA"``. An op of the kit knows by itself what it was given no function for.
        backend: of torch.compile. ``"inductor"`` takes some seconds a sample.
        kwargs: keyword arguments of every call; tensors among them are treated as those of the samples.
        gradient: for an op whose gradient is not its derivative, as a straight-through estimator's: the function of the
            same arguments whose derivative it is, ``lambda x: x`` for one that is passed through; or ``"given"``, if it
            is the derivative of no function, and is then compared with itself alone.
        reference: the same function in torch operations. Default: the one that an op of the kit was given.

    Returns:
        What was found, each property an :class:`Outcome`; ``print`` shows it as it was printed.

    Raises:
        CheckFailed: with the list of what does not hold, and the report.
        KitError: there is no sample, or the arguments cannot be understood.
    """
    name = getattr(op, "name", None) or getattr(op, "__name__", None) or type(op).__name__
    excused = {**getattr(op, "unsupported", {}), **(unsupported or {})}
    if unknown := [title for title in excused if title not in _TITLES]:
        raise KitError(f"[{name}] unsupported= expected titles of {', '.join(_TITLES)}, got {unknown[0]!r}")
    if unknown := [dtype for dtype in dtypes if dtype not in _DTYPES]:
        raise KitError(f"[{name}] dtypes= expected some of {', '.join(map(str, _DTYPES))}, got {unknown[0]}")
    if not samples:
        raise KitError(f"[{name}] check expected at least one sample, got none")
    named = dict(kwargs or {})
    if any(not isinstance(key, str) for key in named):
        raise KitError(f"[{name}] kwargs= expected names of arguments, got {list(named)}")
    if not (gradient is None or gradient == GIVEN or callable(gradient)):
        raise KitError(f"[{name}] gradient= expected a function or {GIVEN!r}, got {gradient!r}")
    if not (reference is None or callable(reference)):
        raise KitError(f"[{name}] reference= expected a function, got {type(reference).__name__}")
    given = [(*(sample if isinstance(sample, tuple) else (sample,)), *named.values()) for sample in samples]
    if unfit := [args for args in given if not any(isinstance(x, Tensor) for x in args)]:
        raise KitError(f"[{name}] check expected a Tensor, or a tuple with one, as each sample, got {unfit[0]!r}")
    outcomes = []
    for args in given:
        sample = Case(op, name, args, tuple(named), tuple(dtypes), excused, backend, reference, gradient)
        for case in _on_devices(sample):
            print(case)
            for outcome in _outcomes(case):
                print(outcome)
                outcomes.append(outcome)
    report = Report(name, tuple(outcomes))
    if not torch.cuda.is_available():
        print(f"no GPU here: {', '.join(_ON_CUDA)} were not tried")
    if report.failed:
        raise CheckFailed(report)
    return report


def _on_devices(case: Case) -> Iterator[Case]:
    yield case
    if torch.cuda.is_available() and case.device.type == "cpu":
        yield case._replace(args=case.moved("cuda"))


def _outcomes(case: Case) -> Iterator[Outcome]:
    device = case.device.type.upper()
    if device in case.unsupported:
        yield _tried(case, device, values.call)
        return
    checks = _EVERYWHERE | (_ON_CUDA if device == "CUDA" else {})
    for title, holds in checks.items():
        outcome = _tried(case, title, holds)
        yield outcome
        if title == "call" and outcome.status != "ok":  # all others would say the same
            return


def _tried(case: Case, title: str, holds: Callable[[Case], str]) -> Outcome:
    reason = case.unsupported.get(title)
    try:
        status, text = "ok", holds(case.copied())
    except Skip as why:
        status, text = "skip", str(why)
    except NoCompiler as error:
        status, text = "skip", _line(error)
    except Exception as error:
        named = f"[{case.name}]" in str(error)
        if reason and named:
            status, text = "refused", f"{reason} ({_line(error)})"
        else:
            status, text = "FAIL", f"{type(error).__name__}: {_line(error)}"
            if reason:
                text = f"must be refused by an error that begins with [{case.name}]: {text}"
    return Outcome(str(case), title, status, text)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
