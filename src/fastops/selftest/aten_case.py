"""The rows of torch's own functions that :func:`fastops.enable` has our kernels behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from .. import _C
from ..cases import Case, Sample
from ..cases.case import Call, Calls
from .target import Target, parameters_of

PREFIX = "aten "


def aten_case(case: Case, device: torch.device) -> Case | None:
    """The row of torch's own function on a device; None where nothing of it is overridden."""
    if case.name not in _C.overridden() or case.torch_op is None:
        return None

    def alike(sample: Sample) -> bool:
        on_cuda = device.type == "cuda" and sample.unlike_torch_on_cuda
        return not (sample.unlike_torch or sample.composed_by_torch or on_cuda)

    samples = tuple(filter(alike, case.samples))
    found = replace(case, name=PREFIX + case.name, function=case.torch_op, samples=samples)
    return replace(found, calls=_of_torchs_parameters(found))


def _of_torchs_parameters(case: Case) -> Calls:
    """Its calls without the options that torch's function does not have."""

    def calls(make: Any) -> Iterator[Call]:
        for call in case.calls(make):
            yield replace(call, arguments={n: x for n, x in call.arguments.items() if n in parameters_of(case)})

    return calls


def function_of(t: Target) -> str:
    """As :func:`fastops.enable` calls it."""
    return t.case.name.removeprefix(PREFIX)
