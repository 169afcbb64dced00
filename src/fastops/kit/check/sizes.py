"""What a sample does not show: other numbers of elements, and numbers that are none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .case import Args, Case, Skip, mapped, short, tensors
from .compare import largest

_SIZES = (31, 64, 257, 1000, 4099)
_LARGEST_INPUT = 50_000  # elements, and of outputs those behind which no larger size is tried
_LARGEST_OUTPUT = 200_000
_ULPS = 16
_SPECIAL = {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf}


class _Truth(NamedTuple):
    """What a call is compared with: the reference, else the op in float64."""

    function: Callable[..., Any]
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
        case.outputs(args)
    except Exception as error:
        known = truth.function is not case.function and f"[{case.name}]" not in str(error)
        if known and _runs(truth, case._replace(args=args).of(torch.float64)):
            raise
        return None
    return sum(y.numel() for y in outputs)


def _runs(truth: _Truth, args: Args) -> bool:
    try:
        _outputs(truth, args)
    except Exception:
        return False
    return True


def _agree(case: Case, args: Args, truth: _Truth, growth: float, what: str) -> None:
    for dtype in case.dtypes:
        rounded = case._replace(args=args).of(dtype)
        in_float64 = case._replace(args=rounded).of(torch.float64)
        pairs = list(zip(case.outputs(rounded), _outputs(truth, in_float64), strict=True))
        labels = [f"output {number}" for number in range(len(pairs))]
        if dtype in (torch.float64, torch.float32):  # of halves many are equal, and a maximum's gradient is any one's
            gradients = _gradients(case, rounded, in_float64, truth)
            pairs += gradients
            labels += [f"gradient of {case.label(k)}" for k, _ in zip(case.floating, gradients, strict=False)]
        at = max(largest(x) for x in rounded if isinstance(x, Tensor))
        for label, (y, z) in zip(labels, pairs, strict=True):
            _close(y, z, max(1.0, at) * growth**0.5, f"{label}, {short(dtype)}, {what}")


def _close(found: Tensor, expected: Tensor, scale: float, what: str) -> None:
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {list(expected.shape)}, got {list(found.shape)}")
    if not found.is_floating_point():
        if not torch.equal(found, expected.to(found.dtype)):
            raise AssertionError(f"{what}: it differs from the reference")
        return
    x, y = found.double(), expected.double()
    allowed = _ULPS * torch.finfo(found.dtype).eps * scale * max(1.0, largest(y))
    wrong = ~((x - y).abs() <= allowed) & (x != y) & ~(x.isnan() & y.isnan())
    wrong &= expected.to(found.dtype) != found  # where it is infinite in a smaller dtype
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise AssertionError(f"{what}: must be {y[wrong][0].item():.9g} at {place}, got {x[wrong][0].item():.9g}")


def _gradients(case: Case, args: Args, in_float64: Args, truth: _Truth) -> list[tuple[Tensor, Tensor]]:
    """None where there are none to compare with."""
    if "gradient" in case.unsupported or (case.slope is not None and not callable(case.slope)):
        return []
    of_primitive = case.primitive if callable(case.slope) else truth.function
    exact = case._replace(args=in_float64)

    def cut(*given: Any) -> Sequence[Tensor]:
        return tensors(of_primitive(*given))[: truth.outputs]

    try:
        expected = exact.gradients(in_float64, op=cut)
    except Exception:  # a reference outside autograd
        return []
    return list(zip(case.gradients(args), expected, strict=True))
