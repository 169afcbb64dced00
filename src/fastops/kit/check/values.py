"""The values of a plain call: that there are some, that they hold in each dtype, and that nothing else changes."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, Skip, described, mapped, short
from .compare import apart, largest

_REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ULPS = 16  # of the largest number in sight: for a few operations, each rounded


def call(case: Case) -> str:
    outputs = case.outputs(case.args)
    if unfit := [y for y in outputs if not isinstance(y, Tensor)]:
        raise AssertionError(f"the outputs must be Tensors, got {type(unfit[0]).__name__}")
    return "gives " + ", ".join(map(described, outputs))


def untouched(case: Case) -> str:
    before = mapped(torch.clone, case.args)
    outputs = case.everything(case.args)
    for k, (x, was) in enumerate(zip(case.args, before, strict=True)):
        if not isinstance(x, Tensor):
            continue
        if not torch.equal(x.nan_to_num(), was.nan_to_num()):
            raise AssertionError(f"{case.label(k)} was overwritten")
        if any(x.numel() and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for y in outputs):
            raise AssertionError(f"an output shares the memory of {case.label(k)}")
    return "and no output shares their memory"


def same_bits(case: Case) -> str:
    first = case.everything(case.args)
    for _ in range(3):
        apart(case.everything(case.args), first, atol=0)
    return "4 calls"


def dtypes(case: Case) -> str:
    """Against float64 of the same rounded inputs; those that the op does not take it must refuse."""
    if not case.floating:
        raise Skip("no floating-point argument")
    said = []
    for dtype in _REAL:
        rounded = case.of(dtype)
        if dtype not in case.dtypes:
            try:
                case.outputs(rounded)
            except Exception as error:
                if f"[{case.name}]" not in str(error):
                    raise
                said.append(f"{short(dtype)} refused")
                continue
            raise AssertionError(f"the op takes {short(dtype)}, which is none of its dtypes=")
        found = case.everything(rounded)
        if dtype is torch.float64:
            continue
        if torch.float64 not in case.dtypes:
            said.append(f"{short(dtype)} runs")
            continue
        at = largest_of(rounded)
        worst = 0.0
        for y, truth in zip(found, case.everything(case._replace(args=rounded).of(torch.float64)), strict=True):
            if truth.is_floating_point() and truth.numel():
                ulp = torch.finfo(y.dtype).eps * max(1.0, at, largest(truth))
                difference = apart([y.double()], [truth], short(dtype), atol=_ULPS * ulp)
                worst = max(worst, difference / ulp)
        said.append(f"{short(dtype)} {worst:.1f}")
    if any(part[-1].isdigit() for part in said):
        said[-1] += f" of {_ULPS} allowed"
        return "units in the last place from float64: " + ", ".join(said)
    return ", ".join(said) or "float64"


def largest_of(args: tuple[object, ...]) -> float:
    return max(largest(x) for x in args if isinstance(x, Tensor))
