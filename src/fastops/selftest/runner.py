"""Runs the checks over ops, paths and dtypes, and keeps what they found."""

from __future__ import annotations

import contextlib
import io
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch

from .. import _C
from ..cases import Case
from .aten_case import aten_case
from .aten_checks import ATEN_CHECKS, TORCHS_FUNCTIONS
from .checks import (
    KERNEL_CHECKS,
    MAIN_DTYPES,
    Check,
    Outcome,
    finite_differences,
    rounded_once,
    rounds,
    rows_alone,
    values,
)
from .cuda_checks import CUDA_CHECKS, FIRST
from .far_apart import far_apart
from .guarded import begun, guarded
from .not_numbers import no_numbers, no_numbers_in_rows
from .numbers import CHECKS as NUMBERS
from .promises import OF_DTYPES, PROMISE_CHECKS, arguments, options_of_hard_numbers
from .reach import CHECKS as REACH
from .reach import NAMES
from .target import Path, Target, on_path
from .transforms import forward_mode, second_derivatives


@dataclass(frozen=True)
class Result:
    op: str
    path: str
    dtype: str
    check: str
    ok: bool
    error: float | None  # ulps
    bound: float | None
    detail: str
    seconds: float


class Step(NamedTuple):
    """An operator that runs on a path, in a dtype, or, with results, that is done there."""

    op: str
    path: str
    dtype: str = ""
    results: list[Result] | None = None
    beside: bool = False  # a better path of the same device


Group = tuple[Case, Path, list[Target]]  # an operator on a path, in its dtypes


def checks_for(target: Target) -> tuple[Check, ...]:
    path = target.path
    if target.aten:
        return ATEN_CHECKS
    if path.kind == "reference":
        return REFERENCE_CHECKS if target.first or not target.quick else (values,)
    promises = (*PROMISE_CHECKS, *TORCHS_FUNCTIONS) if path.best else ()
    checks = (*KERNEL_CHECKS, *NUMBERS, *REACH, *ROWS, *promises)
    first, last = (FIRST, CUDA_CHECKS) if path.kind == "cuda" else ((), ())
    checks = (*first, begun, *checks, *last, guarded)
    return checks if target.main else tuple(check for check in checks if check in IN_EVERY_DTYPE)


ROWS: tuple[Check, ...] = (far_apart, no_numbers_in_rows, options_of_hard_numbers)
# The others are of kernels, or of torch's own gradients.
REFERENCE_CHECKS: tuple[Check, ...] = (values, arguments, no_numbers, forward_mode, second_derivatives)
# Of a quick run; the others are of its main dtypes. Sources are the same for all.
IN_EVERY_DTYPE = (
    *FIRST,
    values,
    rounded_once,
    rounds,
    finite_differences,
    rows_alone,
    *NUMBERS,
    *OF_DTYPES,
    begun,
    guarded,
)
LEFT_OUT = (
    "lower CPU levels, large inputs, torch.compile, traces, scripts, torch's opcheck, "
    "and most checks of float16, float64 and references"
)


def name_of(dtype: torch.dtype) -> str:
    return NAMES[dtype]


def failure_of(target: Target, check: str, why: str) -> Result:
    return Result(target.case.name, str(target.path), name_of(target.dtype), check, False, None, None, why, 0.0)


def run(target: Target) -> Iterator[Result]:
    """All checks of one target; an exception in a check is that check's failure."""
    before = _C.cpu()["isa"]
    target.path.choose()
    try:
        for check in checks_for(target):
            start = time.perf_counter()
            for outcome in outcomes_of(check, target):
                yield Result(
                    op=target.case.name,
                    path=str(target.path),
                    dtype=name_of(target.dtype),
                    check=outcome.check,
                    ok=outcome.ok,
                    error=outcome.error,
                    bound=outcome.bound,
                    detail=outcome.detail,
                    seconds=time.perf_counter() - start,
                )
                start = time.perf_counter()
    finally:
        _C.set_isa(before)


def outcomes_of(check: Check, target: Target) -> list[Outcome]:
    found: list[Outcome] = []
    on_device = torch.cuda.device(target.path.device) if target.path.device.type == "cuda" else contextlib.nullcontext()
    try:
        # opcheck prints, and gradcheck warns, about what the outcome says already. Others warn that torch.jit is
        # deprecated, of torch's older options, and that patch() has swapped nothing.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), on_device:
            warnings.simplefilter("ignore")
            found.extend(check(target))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        found.append(Outcome(check.__name__, False, detail=text))
    return found


def targets(
    cases: Iterable[Case], paths: Iterable[Path], dtypes: Iterable[torch.dtype], quick: bool
) -> Iterator[Group]:
    asked = list(dtypes)
    main = [d for d in asked if d in MAIN_DTYPES] if quick else asked
    for case, path in product(cases, paths):
        here = [d for d in asked if d in case.dtypes]
        of_main = [d for d in here if d in main] or here
        yield (
            case,
            path,
            [Target(on_path(case, path), d, path, quick, main=d in of_main, first=d in of_main[:1]) for d in here],
        )


def aten_targets(
    cases: Iterable[Case], paths: Iterable[Path], dtypes: Iterable[torch.dtype], quick: bool
) -> Iterator[Group]:
    """Of those that torch has too and :func:`fastops.enable` overrides, where there are kernels."""
    for case, path in product(cases, paths):
        found = None if path.kind == "reference" else aten_case(case, path.device)
        if found is not None:
            yield found, path, [Target(found, d, path, quick, aten=True) for d in dtypes if d in found.dtypes]


def steps(groups: Iterable[Group], found: Iterator[Iterable[Result]]) -> Iterator[Step]:
    """``found``: the results of each target, in the groups' order, asked for one after the other."""
    groups = list(groups)
    best = {path.device for _, path, _ in groups if path.best}
    for case, path, group in groups:
        results: list[Result] = []
        for target in group:
            yield Step(case.name, str(path), name_of(target.dtype))
            results += next(found)
        yield Step(case.name, str(path), results=results, beside=path.device in best and not path.best)
