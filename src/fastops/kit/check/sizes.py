"""What a sample does not show: other numbers of elements, and numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .case import GIVEN, Args, Case, Skip, mapped, short, tensors
from .compare import largest

_SIZES = (31, 64, 257, 1000, 4099)
_LARGEST_INPUT = 50_000  # elements, and of outputs those behind which no larger size is tried
_LARGEST_OUTPUT = 200_000
# Of halves many are equal, and the place or the gradient of a maximum may be that of any one.
_PRECISE = (torch.float64, torch.float32)
_ULPS = 16
_NOISE = 8
_OWN = 1e-4  # in place of a unit in the last place, if the op is compared with itself
_SPECIAL = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}

Function = Callable[..., Any]


class _Truth(NamedTuple):
    """What a call is compared with: the reference, else the op in float64."""

    function: Function
    outputs: int
    said: str


def _truth(case: Case) -> _Truth:
    outputs = len(case.outputs(case.args))
    if case.reference:
        return _Truth(case.reference, outputs, "against the reference in float64")
    if torch.float64 not in case.dtypes:
        raise Skip("there is no reference= to compare with, nor float64")
    return _Truth(case.function, outputs, "against the op itself in float64, since there is no reference=")


def other_sizes(case: Case) -> str:
    """Each of the sample's sizes changed, in all tensors that share it, as far as the op can mean that."""
    truth = _truth(case)
    _agree(case, case.args, truth, 1.0, "the sample")
    tried: set[int] = set()
    for was in _sizes(case.args):
        for size in _SIZES:
            args = _resized(case.args, was, size)
            elements = sum(x.numel() for x in args if isinstance(x, Tensor))
            if elements > _LARGEST_INPUT:
                break
            made = _accepted(case, args, truth)
            if made is None:
                break
            _agree(case, args, truth, size / was, f"with {size} in place of {was}")
            tried.add(size)
            if made > _LARGEST_OUTPUT:
                break
    if not tried:
        return f"{truth.said}: the sample's; the op does not take others"
    return f"{truth.said}: the sample's, {', '.join(map(str, sorted(tried)))}"


def special_values(case: Case) -> str:
    """NaN and infinities, one at a time in the first, a middle and the last element of each floating-point argument."""
    if not any(case.args[k].numel() for k in case.floating):
        raise Skip("no floating-point argument with elements")
    truth = _truth(case)
    given = [case.args]
    for was in _sizes(case.args):
        args = _resized(case.args, was, 67)
        elements = sum(x.numel() for x in args if isinstance(x, Tensor))
        if elements <= _LARGEST_INPUT and _accepted(case, args, truth) is not None:
            given.append(args)
            break
    for args in given:
        for k in case.floating:
            for name, value in _SPECIAL.items():
                count = args[k].numel()
                for place in sorted({0, count // 2, count - 1} if count else ()):
                    _same_kind(case, _with(args, k, place, value), truth, f"{name} at {place} of {case.label(k)}")
    return f"{', '.join(_SPECIAL)} {truth.said}"


def _with(args: Args, k: int, place: int, value: float) -> Args:
    x = args[k].clone(memory_format=torch.contiguous_format)
    x.view(-1)[place] = value
    return (*args[:k], x, *args[k + 1 :])


def _same_kind(case: Case, args: Args, truth: _Truth, what: str) -> None:
    for dtype in case.dtypes:
        rounded = case._replace(args=args).of(dtype)
        try:
            expected = _outputs(truth, case._replace(args=rounded).of(torch.float64))
        except Exception:  # it does not take such values
            return
        try:
            found = case.outputs(rounded)
        except Exception as error:
            if f"[{case.name}]" in str(error):  # a refusal
                return
            raise
        for number, (y, z) in enumerate(zip(found, expected, strict=True)):
            if not y.is_floating_point():
                continue
            z = z.to(y.dtype)  # in which it may be infinite
            wrong = (y.isnan() != z.isnan()) | ((y.isinf() | z.isinf()) & (y != z) & ~z.isnan())
            if wrong.any():
                raise AssertionError(
                    f"{what}, {short(dtype)}: output {number} must have {z[wrong][0].item()}, got {y[wrong][0].item()}"
                )


def _sizes(args: Args) -> list[int]:
    """The sample's sizes, which tensors may share; 1 stays, since it may be broadcast."""
    found = dict.fromkeys(n for x in args if isinstance(x, Tensor) for n in x.shape)
    return [n for n in found if n > 1]


def _resized(args: Args, was: int, size: int) -> Args:
    def change(x: Tensor) -> Tensor:
        for dim, n in enumerate(x.shape):
            if n == was:
                x = _longer(x, dim, size)
        return x.contiguous()

    return mapped(change, args)


def _longer(x: Tensor, dim: int, size: int) -> Tensor:
    """The elements again and again; floating-point ones each between itself and another, so that no two are equal."""
    index = torch.arange(size, device=x.device) % x.shape[dim]
    longer = x.index_select(dim, index)
    if not x.is_floating_point():
        return longer
    part = torch.arange(1, longer.numel() + 1, device=x.device, dtype=torch.float64).mul(0.7548776662466927) % 1 / 2
    return longer + (longer.roll(1, dim) - longer) * part.view(longer.shape).to(x.dtype)


def _outputs(truth: _Truth, args: Args) -> list[Tensor]:
    return list(tensors(truth.function(*args)))[: truth.outputs]


def _accepted(case: Case, args: Args, truth: _Truth) -> int | None:
    """How many elements come out; None if sizes do not belong together, or the op names that it refuses them."""
    try:
        outputs = _outputs(truth, case._replace(args=args).of(torch.float64))
    except Exception:
        return None
    try:
        case.outputs(args)
    except Exception as error:
        if truth.function is case.function or f"[{case.name}]" in str(error):
            return None
        shapes = ", ".join(str(list(x.shape)) for x in args if isinstance(x, Tensor))
        raise AssertionError(
            f"of shapes {shapes}, which the reference takes: {type(error).__name__}: {error}"
        ) from error
    return sum(y.numel() for y in outputs)


def _agree(case: Case, args: Args, truth: _Truth, growth: float, what: str) -> None:
    for dtype in case.dtypes:
        rounded = case._replace(args=args).of(dtype)
        found, expected = _pairs(case, rounded, truth, case.function)
        noise = _noise(case, rounded, truth, dtype)
        at = max(largest(x) for x in rounded if isinstance(x, Tensor))
        scale = max(1.0, at) * growth**0.5
        eps = torch.finfo(dtype).eps if truth.function is not case.function else max(torch.finfo(dtype).eps, _OWN)
        for k, (y, z) in enumerate(zip(found, expected, strict=True)):
            number = k - truth.outputs
            if not z.is_floating_point() and dtype not in _PRECISE:
                continue
            label = f"output {k}" if number < 0 else f"gradient of {case.label(case.floating[number])}"
            _close(y, z, _ULPS * eps * scale, noise[k] if noise else 0.0, f"{label}, {short(dtype)}, {what}")


def _pairs(case: Case, rounded: Args, truth: _Truth, function: Function) -> tuple[list[Tensor], list[Tensor]]:
    """What ``function`` makes of the arguments, and the truth in float64: outputs, and gradients behind them."""
    exact = case._replace(args=rounded).of(torch.float64)
    found, expected = list(tensors(function(*rounded)))[: truth.outputs], _outputs(truth, exact)
    dtype = next((x.dtype for x in rounded if isinstance(x, Tensor) and x.is_floating_point()), None)
    if dtype in _PRECISE:
        gradients = _true_gradients(case, exact, truth)
        if gradients:
            expected += gradients
            # Of the reference its gradient is not the one that is given.
            of = case.primitive if callable(case.slope) and function is truth.function else function
            found += case.gradients(rounded, op=lambda *given: tensors(of(*given))[: truth.outputs])
    return found, expected


def _noise(case: Case, rounded: Args, truth: _Truth, dtype: torch.dtype) -> list[float]:
    """How far rounding takes the reference itself from the truth: far where numbers cancel."""
    if truth.function is case.function:
        return []
    low = torch.float32 if dtype is torch.float64 else dtype
    try:
        found, expected = _pairs(case, case._replace(args=rounded).of(low), truth, truth.function)
    except Exception:  # it does not take that dtype
        return []
    factor = torch.finfo(dtype).eps / torch.finfo(low).eps
    return [largest(y.double() - z.double()) * factor for y, z in zip(found, expected, strict=True)]


def _close(found: Tensor, expected: Tensor, allowed: float, noise: float, what: str) -> None:
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: must have shape {list(expected.shape)}, got {list(found.shape)}")
    if not found.is_floating_point():
        if not torch.equal(found, expected.to(found.dtype)):
            raise AssertionError(f"{what}: must be as the reference's, got others")
        return
    x, y = found.double(), expected.double()
    allowed = allowed * max(1.0, largest(y)) + _NOISE * noise
    wrong = ~((x - y).abs() <= allowed) & (x != y) & ~(x.isnan() & y.isnan())
    wrong &= expected.to(found.dtype) != found  # where it is infinite in a smaller dtype
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise AssertionError(f"{what}: must be {y[wrong][0].item():.9g} at {place}, got {x[wrong][0].item():.9g}")


def _true_gradients(case: Case, exact: Args, truth: _Truth) -> list[Tensor]:
    """None where there are none to compare with."""
    if "gradient" in case.unsupported or case.slope == GIVEN:
        return []
    primitive = case.primitive if case.slope else truth.function
    try:
        return case.gradients(exact, op=lambda *given: tensors(primitive(*given))[: truth.outputs])
    except Exception:  # a reference outside autograd
        return []
